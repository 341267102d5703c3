"""Fix functionalisation: writes that were made functional become writes in place again.

Tried on torch 2.13.0, where AOTAutograd makes `auto_functionalized_v2(op, ..., _all_bases=[...])` of
every op that writes an argument: take copies, write those, return them. That is how an attention op
which fills its output reaches Inductor in a graph that was not cut at it.

A call is turned back when nothing can tell the difference: each written argument is a whole base, its
memory is the graph's own, no other argument of the call shares it, and nothing reads it afterwards but
through the call's results. Every other call is left to Inductor, which copies where it has to.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized,
    auto_functionalized_v2,
    get_mutable_args,
)
from torch._ops import OpOverload

from graphkiln.core.passes.graphs import Storages, is_torch_op


@dataclass(frozen=True)
class _Call:
    """The op in place: its arguments, and the bases in the order in which results bring them back."""

    op: OpOverload
    arguments: dict[str, Any]
    bases: tuple[fx.Node, ...]


def fix_functionalization(graph: fx.Graph) -> int:
    """Turns functionalised calls of registered ops back where that is safe; returns how many."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    storages = Storages()
    own = storages.among(node for node in position if node.op not in ("placeholder", "get_attr"))
    own -= storages.among(node for node in position if node.op in ("placeholder", "get_attr"))
    count = 0
    for node in list(graph.nodes):
        call = _call_of(node)
        if call is None or not all(storages.of(base) in own for base in call.bases):
            continue
        if not _unseen(node, call, position, storages):
            continue
        if any(user.target is not operator.getitem for user in node.users):
            continue
        _put_in_place(graph, node, call, storages)
        count += 1
    return count


def _call_of(node: fx.Node) -> _Call | None:
    if node.op != "call_function" or node.target not in (auto_functionalized, auto_functionalized_v2):
        return None
    op = node.args[0]
    if not isinstance(op, OpOverload) or is_torch_op(op):
        return None
    arguments = dict(node.kwargs)
    written = get_mutable_args(op)[0]
    if node.target is auto_functionalized:
        bases: Any = [arguments[name] for name in written]
    else:
        bases = arguments.pop("_all_bases", [])
        for name in written:
            index = arguments.pop(f"_{name}_base_index", None)
            arguments.pop(f"_{name}_alias", None)
            if not isinstance(index, int):
                return None
            arguments[name] = bases[index]
    known = {argument.name for argument in op._schema.arguments}
    # A name that is left says that an argument is a part of its base, and which.
    if not set(arguments) <= known or not all(isinstance(base, fx.Node) for base in bases):
        return None
    return _Call(op, arguments, tuple(bases))


def _unseen(node: fx.Node, call: _Call, position: dict[fx.Node, int], storages: Storages) -> bool:
    written = storages.among(call.bases)
    if len(written) < len(call.bases):
        return False
    written_names = set(get_mutable_args(call.op)[0])
    others = [value for name, value in call.arguments.items() if name not in written_names]
    flat: list[Any] = []
    fx.map_arg(others, flat.append)
    if storages.among(flat) & written:
        return False
    return not any(
        position[user] > position[node]
        for other in position
        if storages.of(other) in written
        for user in other.users
        if user in position
    )


def _put_in_place(graph: fx.Graph, node: fx.Node, call: _Call, storages: Storages) -> None:
    with graph.inserting_before(node):
        placed = graph.call_function(call.op, (), call.arguments)
    returns = len(call.op._schema.returns)
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        placed.meta["val"] = value[0] if returns <= 1 else tuple(value[:returns])
    # An op that returns nothing has one None in front of its bases.
    first_base = max(1, returns)
    for result in list(node.users):
        index = result.args[1]
        assert isinstance(index, int)
        if index >= first_base:
            base = call.bases[index - first_base]
            storages.unite(result, base)
            result.replace_all_uses_with(base)
        elif returns > 1:
            result.replace_input_with(node, placed)
            continue
        else:
            result.replace_all_uses_with(placed)
        graph.erase_node(result)
    graph.erase_node(node)
