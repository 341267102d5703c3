"""One trace: what a forward may take, do and give back, and what is refused by name."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from graphkiln.core import support_torch_compile
from graphkiln.core.errors import CompileError
from tests.trace.traced import trace

SEEN: list[int] = []
COUNTER = 0


class CountsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + 1


class RemembersSize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = 3
        return x + 1


class RemembersResult(nn.Module):
    last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x + 1
        return x * 2


class AppendsToGlobal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(1)
        return x + 1


class SetsGlobal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global COUNTER
        COUNTER = 5
        return x + 1


class WritesToSubmodule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.seen = True  # type: ignore[assignment]
        y: torch.Tensor = self.linear(x)
        return y


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (CountsCalls, "self"),
        (RemembersSize, "self"),
        (RemembersResult, "self"),
        (AppendsToGlobal, "SEEN"),
        (SetsGlobal, "COUNTER"),
        (WritesToSubmodule, "linear"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_change_outside_the_graph_is_refused_and_not_made(kind: Any, named: str) -> None:
    module = support_torch_compile(kind)()
    before = repr({**vars(module), "globals": (SEEN, COUNTER)})
    with pytest.raises(CompileError, match=f"its forward changes .*{named}"):
        trace(module)
    assert repr({**vars(module), "globals": (SEEN, COUNTER)}) == before


class State:
    active = False


STATE = State()


@support_torch_compile
class SetsForItsTime(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        STATE.active = True
        try:
            return x * 2 if STATE.active else x
        finally:
            STATE.active = False


def test_what_is_put_back_before_the_end_is_no_change() -> None:
    assert trace(SetsForItsTime()).smallest == 1
    STATE.active = True
    with pytest.raises(CompileError, match="STATE"):
        trace(SetsForItsTime())
    STATE.active = False


@support_torch_compile
class MakesAndChangesItsOwn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = [x]
        parts.append(x + 1)
        found = {"sum": parts[0] + parts[1]}
        found["last"] = parts.pop()
        return found


def test_objects_that_forward_makes_it_may_change() -> None:
    assert trace(MakesAndChangesItsOwn()).capture.structure[0] == "dict"


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped


@support_torch_compile
class DecoratedForward(nn.Module):
    @logged
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@support_torch_compile
class OpenForward(nn.Module):
    def forward(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return x + 1


@support_torch_compile
class Breaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1


@support_torch_compile
class DoesNotFit(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3, 3)


@support_torch_compile
class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("of its own")


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (DecoratedForward(), r"takes \*args or \*\*kwargs"),
        (OpenForward(), r"takes \*args or \*\*kwargs"),
        (Breaks(), "one graph"),
        (Raises(), r"its code raises ValueError\('of its own'\) .*test_capture\.py"),
        (DoesNotFit(), "its code raises RuntimeError.*same reduction dim.*test_capture"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_cannot_be_traced_is_one_line(module: nn.Module, says: str) -> None:
    with pytest.raises(CompileError, match=says) as caught:
        trace(module)
    assert str(caught.value).startswith(f"{type(module).__name__}: ")
    assert "\n" not in str(caught.value)


@support_torch_compile
class ByKeyword(nn.Module):
    def forward(self, x: torch.Tensor, *, y: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x * scale + y


def test_parameters_may_be_by_keyword_alone() -> None:
    traced = trace(ByKeyword(), torch.ones(5, 4), y=torch.ones(5, 4))
    assert traced.capture.arguments == ("x", "y", "scale")
    assert len(traced.capture.tokens) >= 1
