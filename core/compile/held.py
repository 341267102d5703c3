"""Holding the inputs of a piece to what it was compiled for, at the first call with each token count.

A wiring whose digests agree and that is wrong all the same would hand a kernel memory of another size.
What the piece takes stands in its own artifact and not in the wiring.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphkiln.core.errors import StepFailed

_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "FloorDiv": operator.floordiv,
}


class HeldPiece:
    """A piece for calls of `tokens` tokens: raises StepFailed for inputs that it was not compiled for."""

    def __init__(
        self, piece: Callable[[list[Any]], Sequence[Any]], number: int, inputs: Sequence[Any], tokens: int
    ) -> None:
        self._piece, self._number = piece, number
        self._inputs, self._tokens = inputs, tokens

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Runs the piece."""
        where = f"piece {self._number}"
        if len(inputs) != len(self._inputs):
            raise StepFailed(where, f"{len(self._inputs)} inputs", f"{len(inputs)}")
        for index, (promised, value) in enumerate(zip(self._inputs, inputs, strict=True)):
            hold(f"{where}, input {index}", promised, value, self._tokens)
        return self._piece(inputs)


def hold(where: str, promised: Mapping[str, Any], value: Any, tokens: int) -> None:
    """Raises StepFailed where a value is not the input that `promised` describes."""
    if "symbol" in promised:
        wanted = evaluate(promised["symbol"], tokens)
        if type(value) is not int or wanted not in (None, value):
            raise StepFailed(where, f"the size {promised['symbol']}", _told(value))
        return
    if not isinstance(value, torch.Tensor):
        raise StepFailed(where, f"a tensor of {promised['dtype']}", _told(value))
    if str(value.dtype) != promised["dtype"] or value.device.type != promised["device"]:
        raise StepFailed(where, f"{promised['dtype']} on {promised['device']}", _told(value))
    shape = [size if isinstance(size, int) else evaluate(size, tokens) for size in promised["shape"]]
    sizes = list(value.shape)
    if len(shape) != len(sizes) or any(
        size not in (None, is_now) for size, is_now in zip(shape, sizes, strict=True)
    ):
        raise StepFailed(where, f"sizes {promised['shape']}", _told(value))


def evaluate(expression: str, tokens: int) -> int | None:
    """Returns an expression in `T`, None for one that this cannot read; nothing in it is executed."""
    try:
        return _value(ast.parse(expression, mode="eval").body, tokens)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.AST, tokens: int) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id == "T":
        return tokens
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, tokens)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, tokens), _value(node.right, tokens))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        return _CALLS[node.func.id](*(_value(argument, tokens) for argument in node.args))
    raise ValueError(ast.dump(node))


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} on {value.device.type}"
    return f"a {type(value).__name__}" if not isinstance(value, (int, float, str)) else repr(value)
