"""Splitting a traced graph at its splitting ops.

A splitting op (attention, a cache update) stays eager; what lies between two of them becomes one
piece. The rules: a `getitem` stays with the node it takes from, so that no tuple crosses a boundary;
splitting ops that follow each other share a part; a part that only allocates moves into the piece
before it, so that no piece is empty of work.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx.passes.split_module import split_module

_ALLOCATIONS: frozenset[Any] = frozenset({torch.empty, torch.empty_like, torch.empty_strided, "new_empty"})
_ATEN_ALLOCATIONS = ("aten::empty", "aten::new_empty")


@dataclass(frozen=True)
class Part:
    """One part of a split graph: `splitting` parts hold splitting ops and run eagerly."""

    name: str
    index: int
    splitting: bool
    module: fx.GraphModule


@dataclass(frozen=True)
class SplitGraph:
    """The outer graph, which calls `submod_<index>`, and its parts in call order."""

    outer: fx.GraphModule
    parts: tuple[Part, ...]

    @property
    def pieces(self) -> tuple[Part, ...]:
        """The parts that are compiled."""
        return tuple(part for part in self.parts if not part.splitting)


def split_graph(graph: fx.GraphModule, splitting_ops: Collection[str]) -> SplitGraph:
    """Returns `graph` split at the nodes that call one of `splitting_ops`.

    Names are `namespace::op`, which matches the default overload and the packet, or
    `namespace::op.overload` for any other overload. `graph` is changed: whole `size()` reads become
    one read a dimension, because a `torch.Size` cannot cross from one part into another.
    """
    expand_size_reads(graph)
    part_of, splitting = assign_parts(graph.graph, splitting_ops)
    # On torch 2.12 and later a part with one output would return it bare unless told otherwise.
    outer = split_module(
        graph, graph, lambda node: part_of[node], keep_original_order=True, **_tuple_return()
    )
    parts = []
    for node in outer.graph.nodes:
        if node.op == "call_module":
            index = int(str(node.target).rsplit("_", 1)[1])
            parts.append(Part(str(node.target), index, index in splitting, getattr(outer, str(node.target))))
    return SplitGraph(outer, tuple(parts))


def assign_parts(
    graph: fx.Graph, splitting_ops: Collection[str]
) -> tuple[dict[fx.Node, int], frozenset[int]]:
    """Returns the part number of every node, and which numbers are splitting parts."""
    part_of: dict[fx.Node, int] = {}
    splitting: set[int] = set()
    current = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if is_getitem(node) and node.args[0].op != "placeholder":
            part_of[node] = part_of[node.args[0]]
        elif is_splitting(node, splitting_ops):
            part_of[node] = current + 1
            splitting.add(current + 1)
            if not is_splitting(node.next, splitting_ops):
                current += 2
        else:
            part_of[node] = current
    _merge_allocations(part_of, splitting)
    return part_of, frozenset(splitting)


def is_splitting(node: fx.Node, splitting_ops: Collection[str]) -> bool:
    """Says whether a node calls one of `splitting_ops`."""
    return node.op == "call_function" and any(name in splitting_ops for name in op_names(node.target))


def op_names(target: Any) -> tuple[str, ...]:
    """Returns the names that stand for a registered op, none for any other callable."""
    if isinstance(target, OpOverloadPacket):
        return (target._qualified_op_name,)
    if isinstance(target, OpOverload):
        # `name()` is bare for the default overload, which may also be spelled `namespace::op.default`.
        return (target.name(), f"{target.name()}.{target._overloadname}")
    return ()


def is_getitem(node: fx.Node) -> bool:
    """Says whether a node takes one member of another node's result."""
    return (
        node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[0], fx.Node)
    )


def expand_size_reads(graph: fx.GraphModule) -> None:
    """Replaces every `x.size()` by its dimensions: a symbolic read for a dynamic one, else the number."""
    for node in list(graph.graph.nodes):
        if node.op != "call_method" or node.target != "size" or len(node.args) != 1 or node.kwargs:
            continue
        tensor = node.args[0]
        sizes = tensor.meta["example_value"].size()
        dims: list[Any] = []
        with graph.graph.inserting_after(tensor):
            for dim in reversed(range(len(sizes))):
                if isinstance(sizes[dim], torch.SymInt):
                    read = graph.graph.call_method("size", (tensor, dim))
                    read.meta["example_value"] = sizes[dim]
                    dims.insert(0, read)
                else:
                    dims.insert(0, int(sizes[dim]))
        for user in list(node.users):
            if is_getitem(user) and isinstance(user.args[1], int):
                _replace(user, dims[user.args[1]])
            else:
                user.args = tuple(_spliced(user.args, node, dims))
                user.kwargs = {
                    key: tuple(dims) if value is node else value for key, value in user.kwargs.items()
                }
        graph.graph.erase_node(node)
    graph.graph.lint()
    graph.recompile()


def _spliced(args: tuple[Any, ...], node: fx.Node, dims: list[Any]) -> list[Any]:
    out: list[Any] = []
    for arg in args:
        if arg is node:
            out.extend(dims)
        elif isinstance(arg, (tuple, list)):
            out.append(type(arg)(_spliced(tuple(arg), node, dims)))
        else:
            out.append(arg)
    return out


def _replace(user: fx.Node, value: Any) -> None:
    if isinstance(value, fx.Node):
        user.replace_all_uses_with(value)
    else:
        for reader in list(user.users):
            reader.args = fx.map_arg(reader.args, lambda node: value if node is user else node)
            reader.kwargs = fx.map_arg(reader.kwargs, lambda node: value if node is user else node)
    user.graph.erase_node(user)


def _merge_allocations(part_of: dict[fx.Node, int], splitting: set[int]) -> None:
    members: dict[int, list[fx.Node]] = {}
    for node, number in part_of.items():
        members.setdefault(number, []).append(node)
    pieces_before: list[int] = []
    for number in sorted(members):
        nodes = members[number]
        if len(nodes) == 1 and _is_allocation(nodes[0]) and pieces_before:
            home = pieces_before[-1]
            inputs = [node for node in nodes[0].all_input_nodes if node.op != "placeholder"]
            if all(part_of[node] <= home for node in inputs):
                part_of[nodes[0]] = home
                splitting.discard(number)
                continue
        if number not in splitting:
            pieces_before.append(number)


def _is_allocation(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _ALLOCATIONS
    if node.op != "call_function":
        return False
    names = op_names(node.target)
    return names[0].startswith(_ATEN_ALLOCATIONS) if names else node.target in _ALLOCATIONS


def _tuple_return() -> dict[str, Any]:
    import inspect

    known = inspect.signature(split_module).parameters
    return {"tuple_return": True} if "tuple_return" in known else {}
