"""No-op elimination: reshapes, views, slices and conversions that change nothing, under symbolic shapes.

A node is a no-op when it gives back its source:

- a view (`view`, `expand`, `permute`, `slice`, ...) that shares its source's memory and has its form
  (`graphs.same_form`): equal sizes, strides and offset of one memory are one tensor;
- a conversion or copy (`clone`, `_to_copy`, `convert_element_type`) whose result has the form of its
  source, dtype included; `slice_scatter` whose source has the form of the result covers all of it.

A reshape of a reshape reads the first one's source, where that is contiguous and so can be viewed in
any shape. `equal` means provable for every token count in range, so that no guard is added.

Nothing is removed that would make an output be an input, or two outputs one tensor, where they were
apart before, or that would show a copy the later writes to its source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphkiln.core.passes.graphs import (
    Storages,
    is_contiguous,
    output_nodes,
    same_form,
    tensor_of,
    written_nodes,
)

_aten, _prims = torch.ops.aten, torch.ops.prims

_RESHAPES: frozenset[Any] = frozenset({_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default})
_VIEWS: frozenset[Any] = _RESHAPES | {
    _aten.alias.default, _aten.as_strided.default, _aten.detach.default, _aten.expand.default,
    _aten.permute.default, _aten.slice.Tensor, _aten.squeeze.default, _aten.squeeze.dim,
    _aten.squeeze.dims, _aten.t.default, _aten.transpose.int, _aten.view.dtype,
}  # fmt: skip
_COPIES: frozenset[Any] = frozenset(
    {
        _aten._to_copy.default,
        _aten.clone.default,
        _aten.lift_fresh_copy.default,
        _prims.convert_element_type.default,
    }
)


def eliminate_noops(graph: fx.Graph) -> int:
    """Removes what changes nothing; returns how many nodes it removed or shortened."""
    elimination = _Elimination(graph)
    return sum(elimination.of(node) for node in list(graph.nodes) if node.op == "call_function")


class _Elimination:
    """One pass over one graph, with what it must know of memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._storages = Storages()
        self._outputs = output_nodes(graph)
        self._inputs = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
        self._written = [written for node in graph.nodes for written in written_nodes(node)]

    def of(self, node: fx.Node) -> bool:
        """Removes or shortens a node; says whether it did."""
        shortened = node.target in _RESHAPES and _skip_reshape(node)
        source = _source(node)
        if source is None or not _gives_back(node, source, self._storages) or self._shows(node, source):
            return shortened
        self._storages.unite(node, source)
        node.replace_all_uses_with(source)
        self._graph.erase_node(node)
        self._outputs = [source if output is node else output for output in self._outputs]
        return True

    def _shows(self, node: fx.Node, source: fx.Node) -> bool:
        """Says whether somebody could tell a node from its source."""
        if node in self._outputs and (source in self._inputs or source in self._outputs):
            return True
        result, given = self._storages.of(node), self._storages.of(source)
        if result == given:
            return False
        returned, inputs = self._storages.among(self._outputs), self._storages.among(self._inputs)
        if result in returned and given in inputs | returned:
            return True
        return bool({result, given} & self._storages.among(self._written))


def _source(node: fx.Node) -> fx.Node | None:
    if node.target is _aten.slice_scatter.default:
        found: Any = node.args[1]
    elif node.target in _VIEWS or node.target in _COPIES:
        found = node.args[0]
    else:
        return None
    return found if isinstance(found, fx.Node) else None


def _gives_back(node: fx.Node, source: fx.Node, storages: Storages) -> bool:
    result, given = tensor_of(node), tensor_of(source)
    if result is None or given is None or not same_form(result, given):
        return False
    if node.target not in _VIEWS or node.target in _RESHAPES:
        # A reshape to the same shape keeps every element in place, copied or not.
        return True
    return storages.of(node) == storages.of(source)


def _skip_reshape(node: fx.Node) -> bool:
    """Makes a reshape of a reshape read the first one's source; says whether it did."""
    first = node.args[0]
    if not isinstance(first, fx.Node) or first.target not in _RESHAPES:
        return False
    source = tensor_of(first.args[0])
    if source is None or not is_contiguous(source):
        return False
    node.args = (first.args[0], *node.args[1:])
    return True
