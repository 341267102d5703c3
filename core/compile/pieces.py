"""What a piece is, told apart from where it came from.

A piece's *signature* is plain data: its inputs, its operations and its outputs, with every node
numbered in order and every token-count symbol called `T`. Its *fingerprint* is the digest of that,
so that the thirty equal layers of a model are found to be one piece before Inductor sees any.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from graphkiln.cache.factors.canonical import digest
from graphkiln.core.compile.tensors import tensor_digest
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.kernels import is_launch, launch_data

TOKENS = "T"
# Numbers under which a process keeps what a node launches.
_OF_PROCESS = frozenset({"kernel_idx", "constant_args_idx"})


@dataclass(frozen=True)
class SymbolInput:
    """An int input of a piece: an expression in `T`."""

    expression: str


@dataclass(frozen=True)
class TensorInput:
    """A tensor input of a piece; `shape` and `stride` hold ints and expressions in `T`."""

    dtype: str
    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    device: str


PieceInput = SymbolInput | TensorInput


@dataclass(frozen=True)
class Piece:
    """One distinct piece: its graph (parameters as placeholders), inputs and fingerprint."""

    graph: fx.GraphModule
    inputs: tuple[PieceInput, ...]
    signature: Mapping[str, Any]
    fingerprint: str


def describe_piece(graph: fx.GraphModule, tokens: frozenset[sympy.Symbol]) -> Piece:
    """Returns a piece of a split graph as data, with its fingerprint.

    `tokens` are the symbols that stand for the token count. Raises Bypass for a node that has no
    canonical form: two pieces that cannot be compared cannot be cached.
    """
    inputs = tuple(_input(node, tokens) for node in graph.graph.nodes if node.op == "placeholder")
    signature = {"inputs": [_input_json(i) for i in inputs], "nodes": _Nodes(tokens).of(graph)}
    return Piece(graph, inputs, signature, digest(signature))


def dimension(value: Any, tokens: frozenset[sympy.Symbol]) -> int | str:
    """Returns a size as an int, or as the text of its expression in `T`.

    Every dynamic dimension of a start is the same token count, which the door checks; so symbols
    that Dynamo kept apart are one here. Raises Bypass for a size that only the data decides.
    """
    if not isinstance(value, torch.SymInt):
        return int(value)
    expression = value.node.expr
    stranger = next((symbol for symbol in expression.free_symbols if symbol not in tokens), None)
    if stranger is not None:
        raise Bypass("code", f"a size that depends on data ({stranger}) crosses from one piece to another")
    same = sympy.Symbol(TOKENS, integer=True, positive=True)
    return str(expression.subs(dict.fromkeys(expression.free_symbols, same)))


def _input(node: fx.Node, tokens: frozenset[sympy.Symbol]) -> PieceInput:
    value = node.meta["example_value"]
    if isinstance(value, torch.Tensor):
        return TensorInput(
            dtype=str(value.dtype),
            shape=tuple(dimension(size, tokens) for size in value.shape),
            stride=tuple(dimension(step, tokens) for step in value.stride()),
            device=value.device.type,
        )
    if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
        return SymbolInput(str(dimension(value, tokens)))
    raise Bypass("code", f"piece input {node.name} is a {type(value).__name__}, neither a tensor nor a size")


def _input_json(value: PieceInput) -> dict[str, Any]:
    if isinstance(value, SymbolInput):
        return {"symbol": value.expression}
    return {
        "dtype": value.dtype,
        "shape": list(value.shape),
        "stride": list(value.stride),
        "device": value.device,
    }


class _Nodes:
    """Writes the nodes of a graph, and of the graphs it holds, as plain data."""

    def __init__(self, tokens: frozenset[sympy.Symbol]) -> None:
        self.tokens = tokens

    def of(self, graph: fx.GraphModule) -> list[Any]:
        number = {node: i for i, node in enumerate(graph.graph.nodes)}
        found: list[Any] = []
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                found.append(["placeholder"])
            elif node.op == "get_attr":
                found.append(["get_attr", self._attribute(graph, str(node.target))])
            else:
                target = node.target if isinstance(node.target, str) else _callable_name(node.target)
                named = node.kwargs
                own = []
                if is_launch(node.target):
                    named = {name: value for name, value in named.items() if name not in _OF_PROCESS}
                    own = [launch_data(node)]
                args = [self._argument(node.args, number), self._argument(named, number)]
                found.append([node.op, target, *args, *own])
        return found

    def _attribute(self, graph: fx.GraphModule, path: str) -> Any:
        value: Any = graph
        for part in path.split("."):
            value = getattr(value, part)
        if isinstance(value, fx.GraphModule):
            return self.of(value)
        if isinstance(value, torch.Tensor):
            return ["tensor", str(value.dtype), list(value.shape), list(value.stride()), tensor_digest(value)]
        raise Bypass("code", f"the graph holds {path}, a {type(value).__name__}")

    def _argument(self, value: Any, number: dict[fx.Node, int]) -> Any:
        if isinstance(value, fx.Node):
            return ["node", number[value]]
        if isinstance(value, (tuple, list)):
            return [type(value).__name__, [self._argument(item, number) for item in value]]
        if isinstance(value, Mapping):
            return ["dict", [[str(key), self._argument(item, number)] for key, item in value.items()]]
        if isinstance(value, slice):
            return ["slice", [self._argument(item, number) for item in (value.start, value.stop, value.step)]]
        if isinstance(value, torch.SymInt):
            return ["symbol", dimension(value, self.tokens)]
        return constant(value)


def constant(value: Any) -> list[Any]:
    """Returns a literal of a graph as plain data that keeps its type. Raises Bypass when it has no form."""
    if isinstance(value, (bool, int, str)) or value is None:
        return [type(value).__name__, value]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, torch.device):
        return ["device", value.type]
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return ["torch", str(value)]
    if isinstance(value, enum.Enum):
        return ["enum", type(value).__qualname__, value.name]
    if value is Ellipsis:
        return ["..."]
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return ["callable", _callable_name(value)]
    raise Bypass("code", f"the graph passes a {type(value).__name__}, which has no canonical form")


def _callable_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return f"op {target.name()}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"op {target._qualified_op_name}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher order {target.name()}"
    module = getattr(target, "__module__", None) or getattr(
        getattr(target, "__objclass__", None), "__module__", ""
    )
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if name is None or "<locals>" in name or "<lambda>" in name:
        raise Bypass("code", f"the graph calls {target!r}, which has no name")
    return f"{module}.{name}"
