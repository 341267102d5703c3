"""Facts about the token count: what a model may ask, and what it is told when it asks too much."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy.functions import FloorDiv, Mod

from graphkiln.core import support_torch_compile
from graphkiln.core.errors import Bypass, CompileError, ShapeLimited
from graphkiln.core.trace.shapes import ShapeFact, first_failure, require
from tests.trace.traced import trace


@support_torch_compile
class FewBranch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] <= 8 else x * 2


@support_torch_compile
class ManyBranch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 1000 else x * 2


@support_torch_compile
class OddBranch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] % 2 else x * 2


@support_torch_compile
class OneBranch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] == 1 else x * 2


@support_torch_compile
class Squeezes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0) * 2


@support_torch_compile
class FailsForOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x[1]


@support_torch_compile
class SqueezesAtTheEnd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).squeeze(0)


@support_torch_compile
class ViewsAtTheEnd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).view(4) if x.shape[0] == 1 else x * 2


@support_torch_compile
class OtherNumberForOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x, 1 if x.shape[0] == 1 else 2, 1)


@support_torch_compile
class OtherFactorForOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (0.5 if x.shape[0] == 1 else 0.25)


@support_torch_compile
class Averages(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0, keepdim=True) / x.shape[0] + torch.arange(x.shape[0] + 3)[3:, None] + x


@support_torch_compile
class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 / x.shape[0])


@support_torch_compile
class HarmlessBranches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if x.shape[0] < 100000 else x
        x = x if x.t().is_contiguous() else x.t().contiguous().t()
        return x.reshape(-1, 4) + x.reshape(x.shape[0], 2, 2).sum(-1).mean()


@support_torch_compile
class Grouped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 13, 4).sum(1)


@support_torch_compile
class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(13, 4)


@support_torch_compile
class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


@support_torch_compile
class DataSized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()


@pytest.mark.parametrize(
    ("module", "first", "condition"),
    [
        (FewBranch(), 2, "x + 1 if x.shape[0] <= 8 else x * 2"),
        (ManyBranch(), 1001, "x + 1 if x.shape[0] > 1000 else x * 2"),
        (OddBranch(), 2, "x + 1 if x.shape[0] % 2 else x * 2"),
        (Grouped(), 2, "x.reshape(-1, 13, 4)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_branch_that_cannot_hold_names_the_first_count_and_the_line(
    module: nn.Module, first: int, condition: str
) -> None:
    with pytest.raises(ShapeLimited) as caught:
        trace(module)
    assert caught.value.num_tokens == first
    assert condition in caught.value.line
    assert "test_shapes.py:" in caught.value.line
    assert f"{first} tokens fail first" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


@pytest.mark.parametrize(("module", "largest"), [(FewBranch(), 8), (ManyBranch(), 1000)], ids=["8", "1000"])
def test_the_same_branch_holds_where_its_limit_is_not_reached(module: nn.Module, largest: int) -> None:
    assert trace(module, largest=largest).capture.graph is not None


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (OneBranch(), "aten::add"),
        (Squeezes(), "aten::squeeze"),
        (SqueezesAtTheEnd(), "aten::squeeze"),
        (ViewsAtTheEnd(), "result"),
        (OtherNumberForOne(), "aten::roll"),
        (OtherFactorForOne(), "aten::mul"),
        (Inverse(), "aten::mul"),
        (FailsForOne(), "IndexError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_model_that_does_something_else_for_one_token_starts_at_two_and_says_so(
    module: nn.Module, why: str
) -> None:
    traced = trace(module)
    assert traced.smallest == 2
    (decision,) = traced.decisions
    assert (decision.field, decision.asked, decision.got) == ("smallest token count", 1, 2)
    assert why in decision.reason


@pytest.mark.parametrize("module", [HarmlessBranches(), Averages()], ids=lambda value: type(value).__name__)
def test_facts_that_every_count_meets_limit_nothing(module: nn.Module) -> None:
    traced = trace(module)
    assert (traced.smallest, traced.decisions) == (1, ())


def test_two_arguments_share_one_count() -> None:
    assert trace(Two(), torch.ones(5, 4), torch.ones(5, 4)).smallest == 1


@pytest.mark.parametrize("module", [Fixed(), DataSized()], ids=lambda value: type(value).__name__)
def test_a_size_that_is_not_the_token_count_is_refused_by_name(module: Any) -> None:
    with pytest.raises((CompileError, Bypass), match=r"constant|data|Dynamic|dynamic"):
        trace(module)


def test_a_compile_size_that_a_model_does_not_serve_is_left_out_and_said() -> None:
    traced = trace(OneBranch(), compile_sizes=(1, 16))
    (_, dropped) = traced.decisions
    assert (dropped.field, dropped.asked, dropped.got) == ("compile_sizes", [1, 16], [16])
    assert dropped.reason == "backbone serves 2 tokens and more"


T, S = sympy.symbols("T S", integer=True, positive=True)


@pytest.mark.parametrize(
    ("fact", "failing"),
    [
        (T > 8, 2),
        (T <= 1024, 1025),
        (sympy.Ne(sympy.Mod(T, 2), 0), 2),
        (sympy.Eq(sympy.Mod(4 * T, 8), 0), 3),
        (sympy.Ne(T, 700), 700),
        (sympy.Eq(T // 4, 0), 4),
        (T < 100000, None),
        (sympy.true, None),
        (sympy.false, 2),
    ],
    ids=str,
)
def test_every_count_of_the_range_is_tried(fact: Any, failing: int | None) -> None:
    assert first_failure(fact, 2, 2048) == failing


@pytest.mark.parametrize(
    ("fact", "failing"),
    [
        (T < 100_000, 100_000),
        (8 * T < 2**31, 2**28),
        (sympy.Ne(T, 700_000_001), 700_000_001),
        (sympy.Eq(FloorDiv(T, 2**30), 0), 2**30),
        (sympy.Ne(Mod(T, 1000), 999), 999),
        (T >= 2, None),
        (8 * T < 2**35, None),
    ],
    ids=str,
)
def test_a_range_of_billions_is_answered_at_once_and_exactly(fact: Any, failing: int | None) -> None:
    assert first_failure(fact, 2, 2**31 - 1) == failing


def test_counts_that_two_arguments_bring_are_tied_and_a_strange_size_is_refused() -> None:
    both = frozenset({T, S})
    require([ShapeFact(sympy.Eq(T, S), "")], both, 2, 2048)
    with pytest.raises(ShapeLimited):
        require([ShapeFact(sympy.Ne(T, S), "")], both, 2, 2048)
    with pytest.raises(Bypass, match="a size that data decides"):
        require([ShapeFact(sympy.Eq(T, S), "")], frozenset({T}), 2, 2048)
