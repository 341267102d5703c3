"""Cleanup: nodes in topological order, constants once, nothing that nobody reads."""

from __future__ import annotations

import heapq
import operator
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from graphkiln.core.errors import CompileError
from graphkiln.core.passes.graphs import Storages, is_torch_op, output_nodes, tensor_of, written_nodes

_aten, _prims = torch.ops.aten, torch.ops.prims

# They make a tensor of their arguments alone, and the same one each time.
_CONSTANTS: frozenset[Any] = frozenset(
    {
        _aten.arange.default, _aten.arange.start, _aten.arange.start_step, _aten.full.default,
        _aten.ones.default, _aten.scalar_tensor.default, _aten.zeros.default, _prims.iota.default,
    }
)  # fmt: skip
_FIRST = {"placeholder": 0, "output": 2}


def cleanup(graph: fx.Graph) -> int:
    """Sorts a graph, merges equal constants, drops dead nodes; returns how many it took out."""
    sort_topologically(graph)
    return merge_constants(graph) + drop_dead(graph)


def sort_topologically(graph: fx.Graph) -> None:
    """Puts every node behind what it reads, and otherwise leaves the order as it is.

    Raises CompileError for a cycle.
    """
    nodes = list(graph.nodes)
    rank = {node: (_FIRST.get(node.op, 1), index) for index, node in enumerate(nodes)}
    waiting = {node: len(node.all_input_nodes) for node in nodes}
    ready = [(*rank[node], node) for node in nodes if not waiting[node]]
    heapq.heapify(ready)
    order: list[fx.Node] = []
    while ready:
        node = heapq.heappop(ready)[-1]
        order.append(node)
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (*rank[user], user))
    if len(order) < len(nodes):
        raise CompileError("passes", "the graph has a cycle", "correct the pass that made it")
    if order != nodes:
        for node in reversed(order):
            graph._root.append(node)


def merge_constants(graph: fx.Graph) -> int:
    """Makes equal constants one node; returns how many it took out.

    One that is written, returned, or given to a functionalised write keeps its own memory.
    """
    storages = Storages()
    written = [written for node in graph.nodes for written in written_nodes(node)]
    apart = storages.among([*output_nodes(graph), *written])
    first: dict[Any, fx.Node] = {}
    count = 0
    for node in list(graph.nodes):
        key = _constant_key(node)
        if key is None or storages.of(node) in apart:
            continue
        if any(isinstance(user.target, HigherOrderOperator) for user in node.users):
            continue
        kept = first.setdefault(key, node)
        if kept is not node:
            node.replace_all_uses_with(kept)
            graph.erase_node(node)
            count += 1
    return count


def _constant_key(node: fx.Node) -> Any:
    if node.op == "get_attr":
        return ("get_attr", str(node.target)) if tensor_of(node) is not None else None
    if node.op != "call_function" or node.target not in _CONSTANTS:
        return None
    # As text, because 1, 1.0 and True are equal and make three different tensors.
    return node.target, repr(node.args), repr(node.kwargs)


def drop_dead(graph: fx.Graph) -> int:
    """Removes nodes that nobody reads and that do nothing else; returns how many.

    Ops of others are kept: that they write no argument does not say that they write nothing.
    """
    count = 0
    for node in reversed(list(graph.nodes)):
        if not node.users and _only_computes(node):
            graph.erase_node(node)
            count += 1
    return count


def _only_computes(node: fx.Node) -> bool:
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or node.is_impure():
        return False
    if node.target is operator.getitem:
        return True
    if not is_torch_op(node.target):
        return getattr(node.target, "__module__", "") == "_operator"
    return torch.Tag.nondeterministic_seeded not in node.target.tags and not written_nodes(node)  # type: ignore[union-attr]
