"""Does one token run the same operators as many?

A traced symbol starts at 2, so a branch on `T == 1` is answered without leaving a fact behind. The
eager model is run under fake tensors at several token counts and the operators are compared: their
names, the ranks of their tensors, their other arguments, the shape of the result. Operators that only
lay out memory are left out, because a tensor of one row is contiguous in more ways than one.

Sizes and numbers may vary with the token count: what they are for one token has to lie on the line
through what they are for two and for many.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import unittest.mock
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from graphkiln.core.trace.ambient import serving_state
from graphkiln.core.trace.arguments import IntermediateTensors, by_position_and_name
from graphkiln.core.trace.kernel_objects import kernel_name
from graphkiln.core.trace.observe import type_name

_LAYOUT = frozenset(
    {
        "prim::device", "aten::view", "aten::_unsafe_view", "aten::reshape", "aten::_reshape_alias",
        "aten::clone", "aten::transpose", "aten::t", "aten::expand", "aten::alias", "aten::contiguous",
        "aten::detach", "aten::permute", "aten::as_strided",
    }
)  # fmt: skip

_CONSTANTS = (bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)

# What one thread put in the place of a launch has to be gone before another one puts its own there.
_one_at_a_time = threading.RLock()


@dataclass(frozen=True)
class Ran:
    """One operator as it ran: its name, what does not vary with the token count, the numbers that may."""

    name: str
    fixed: str
    numbers: tuple[float, ...]


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[Ran] = []

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name not in _LAYOUT:
            self.ran.append(_ran(f"{func._schema.name}.{func._overloadname}", (args, kwargs or {}, out)))
        return out


def operator_log(module: torch.nn.Module, arguments: Sequence[Any]) -> list[Ran]:
    """Returns the operators that `module.forward` runs on fake copies of `arguments`, and last its result."""
    mode = fake_mode_of(module) or FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    log = _Log()
    with serving_state(), _launches_noted(log), mode, log:
        args, kwargs = by_position_and_name(module.forward, fake)
        result = module.forward(*args, **kwargs)
    given = result.tensors if isinstance(result, IntermediateTensors) else result
    return [*log.ran, _ran("the result", given)]


@contextlib.contextmanager
def _launches_noted(log: _Log) -> Iterator[None]:
    """Notes this thread's launches of Triton kernels as operators: fake tensors have nothing to launch on.

    Launches of other threads go on. Grids are left out, which round up to whole blocks.
    """
    with contextlib.ExitStack() as replaced:
        replaced.enter_context(_one_at_a_time)
        for module, kind in (("jit", "JITFunction"), ("autotuner", "Autotuner"), ("autotuner", "Heuristics")):
            found = sys.modules.get(f"triton.runtime.{module}")
            if found is not None:
                launcher = getattr(found, kind)
                noted = _noting(log, launcher.run)
                replaced.enter_context(unittest.mock.patch.object(launcher, "run", noted))
        yield


def _noting(log: _Log, launch: Any) -> Any:
    tracing = threading.get_ident()

    def run(self: Any, *args: Any, **named: Any) -> Any:
        if threading.get_ident() != tracing:
            return launch(self, *args, **named)
        given = {name: value for name, value in named.items() if name not in ("grid", "warmup")}
        log.ran.append(_ran(f"kernel {kernel_name(self)}", (args, given)))
        return None

    return run


def fake_mode_of(module: torch.nn.Module) -> FakeTensorMode | None:
    """Returns the mode of a module's tensors where they are fake: those of two modes do not mix."""
    tensors = (tensor for group in (module.parameters(), module.buffers()) for tensor in group)
    mode: FakeTensorMode | None = next(
        (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None
    )
    return mode


def first_difference(one: Sequence[Ran], other: Sequence[Ran]) -> str | None:
    """Returns the first operator in which two logs differ, numbers apart; None when they are equal."""
    for left, right in zip(one, other, strict=False):
        if (left.name, left.fixed) != (right.name, right.fixed):
            return left.name if left.name == right.name else f"{left.name} against {right.name}"
    if len(one) != len(other):
        longer = one if len(one) > len(other) else other
        return longer[min(len(one), len(other))].name
    return None


def first_stray(one: Sequence[Ran], two: Sequence[Ran], many: Sequence[Ran], count: int) -> str | None:
    """Returns the first operator whose numbers for one token do not follow from those for 2 and `count`.

    The three logs have to be equal apart from their numbers.
    """
    for first, second, last in zip(one, two, many, strict=True):
        for a, b, c in zip(first.numbers, second.numbers, last.numbers, strict=True):
            # With two tokens at most there is no line: what varies has to be a multiple of the count.
            if (b - a) * (count - 2) != c - b if count > 2 else b not in (a, 2 * a):
                return first.name
    return None


def _ran(name: str, values: Any) -> Ran:
    leaves, structure = tree_flatten(values)
    fixed: list[str] = []
    numbers: list[float] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            fixed.append(f"{leaf.dtype} of rank {leaf.dim()}")
            numbers.extend(leaf.shape)
        elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            fixed.append(type(leaf).__name__)
            numbers.append(leaf)
        else:
            fixed.append(str(leaf) if isinstance(leaf, _CONSTANTS) else type_name(type(leaf)))
    return Ran(name, f"{structure} {fixed}", tuple(numbers))
