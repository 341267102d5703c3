"""Does one token run the same operators as many?

A traced symbol starts at 2, so a branch on `T == 1` is answered without leaving a fact behind. The
eager model is run under fake tensors at several token counts and the operators are compared: their
names, the ranks of their tensors, their other arguments. Operators that only lay out memory are left
out, because a tensor of one row is contiguous in more ways than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from graphkiln.core.trace.ambient import serving_state

_LAYOUT = frozenset(
    {
        "prim::device", "aten::view", "aten::_unsafe_view", "aten::reshape", "aten::_reshape_alias",
        "aten::clone", "aten::transpose", "aten::t", "aten::expand", "aten::alias", "aten::contiguous",
        "aten::detach", "aten::permute", "aten::as_strided",
    }
)  # fmt: skip


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name not in _LAYOUT:
            ranks = tree_map_only(torch.Tensor, lambda t: f"rank {t.dim()}", (args, kwargs or {}))
            self.lines.append(f"{name}.{func._overloadname} {_without_sizes(ranks)}")
        return out


def operator_log(module: torch.nn.Module, arguments: Sequence[Any]) -> list[str]:
    """Returns the operators that `module.forward` runs on fake copies of `arguments`, in order."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    log = _Log()
    with serving_state(), mode, log:
        module.forward(*fake)
    return log.lines


def first_difference(one: Sequence[str], other: Sequence[str]) -> str | None:
    """Returns the first operator in which two logs differ, None when they are equal."""
    for left, right in zip(one, other, strict=False):
        if left != right:
            return (
                f"{left.split(' ')[0]} against {right.split(' ')[0]}"
                if left.split()[0] != right.split()[0]
                else left
            )
    if len(one) != len(other):
        longer = one if len(one) > len(other) else other
        return longer[min(len(one), len(other))].split(" ")[0]
    return None


def _without_sizes(value: Any) -> str:
    """Returns arguments as text in which sizes, which vary with the token count, do not show."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_without_sizes(item) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_without_sizes(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int"
    return str(value)
