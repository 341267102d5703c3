"""What passes ask of a graph: equal under symbolic shapes, and which tensors share memory.

Tried on torch 2.13.0. Every node that makes a tensor has its fake in `meta["val"]`.

Two sizes are equal when torch can prove it for every token count in range (`statically_known_true`);
asking adds no guard. Two tensors have the same form when dtype, device, layout, sizes, strides and
storage offset are equal in that sense.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

_TORCH = frozenset({"aten", "prims", "prim"})


def tensor_of(node: Any) -> torch.Tensor | None:
    """Returns the fake tensor of a node, None for anything that is not one strided tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def equal(one: Any, other: Any) -> bool:
    """Says whether two sizes, or two lists of sizes, are equal for every token count."""
    return bool(statically_known_true(sym_eq(one, other)))


def same_form(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Says whether two tensors have the same dtype, device, sizes, strides and offset."""
    return (
        one.dtype == other.dtype
        and one.device == other.device
        and one.dim() == other.dim()
        and equal(one.size(), other.size())
        and equal(one.stride(), other.stride())
        and equal(one.storage_offset(), other.storage_offset())
    )


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Says whether strides are those of the sizes in order; a stride that is never stepped must be too."""
    expected: Any = 1
    for size, stride in reversed(list(zip(tensor.size(), tensor.stride(), strict=True))):
        if not equal(stride, expected):
            return False
        expected = expected * size
    return True


def is_torch_op(target: Any) -> bool:
    """Says whether a call is of torch's own registered ops, whose schema tells all that they do."""
    return isinstance(target, OpOverload) and target.namespace in _TORCH


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """Returns the arguments that a node writes in place, by the schema of its op."""
    if not isinstance(node.target, OpOverload):
        return []
    found: list[fx.Node] = []
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            found += [item for item in _flat(value) if isinstance(item, fx.Node)]
    return found


def output_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Returns the nodes that a graph returns."""
    return [node for node in _flat(graph.output_node().args[0]) if isinstance(node, fx.Node)]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


class Storages:
    """Which nodes share memory, kept right while nodes are replaced by others.

    The fakes say it of the graph as it came. Where a node is replaced by one with memory of its own,
    what was derived from the first now shares the memory of the second: `unite` says so.
    """

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def of(self, node: Any) -> int | None:
        """Returns a number for the memory behind a node, None for what is no tensor."""
        tensor = tensor_of(node)
        return None if tensor is None else self._root(tensor.untyped_storage()._cdata)

    def among(self, nodes: Any) -> set[int]:
        """Returns the memories of nodes."""
        return {found for node in nodes if (found := self.of(node)) is not None}

    def unite(self, one: fx.Node, other: fx.Node) -> None:
        """Notes that two nodes share memory from here on."""
        first, second = self.of(one), self.of(other)
        if first is not None and second is not None and first != second:
            self._parent[first] = second

    def _root(self, storage: int) -> int:
        while storage in self._parent:
            storage = self._parent[storage]
        return storage
