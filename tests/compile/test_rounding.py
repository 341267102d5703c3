"""What is allowed between compiled code and eager where both round: what the model itself makes of it."""

from __future__ import annotations

import contextlib
import copy
import math

import pytest
import torch
from torch import nn

from graphkiln.core.compile.check import carried, check_part, compared
from graphkiln.core.compile.rounding import rounded_otherwise


class Deep(nn.Module):
    """A model that carries rounding far: every layer has more gain than its sigmoid takes back."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layers = nn.ModuleList(nn.Linear(48, 48, bias=False) for _ in range(24))
            for layer in self.layers:
                nn.init.normal_(layer.get_parameter("weight"), std=1.6 / 48**0.5)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through every layer."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def inputs(count: int) -> tuple[torch.Tensor]:
    return (torch.randn(count, 48, generator=torch.Generator().manual_seed(count)).bfloat16(),)


def context(count: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def test_what_rounds_less_than_eager_is_equal_though_it_is_beyond_what_any_model_may_differ_by() -> None:
    model, precise = Deep(), copy.deepcopy(Deep()).float()

    def compiled(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = precise(x.float()).bfloat16()
        return found

    with torch.no_grad():
        error, limit = compared(compiled(*inputs(64)), model(*inputs(64)))
    assert error > limit
    (row,) = check_part(compiled, model, inputs, context, [64]).rows
    assert row.ok
    assert row.max_abs_error == error
    assert row.tolerance > limit


@pytest.mark.parametrize("wrong", ["a layer left out", "a row that is another's"])
def test_what_is_wrong_is_not_explained_by_rounding(wrong: str) -> None:
    model, other = Deep(), Deep()
    if wrong == "a layer left out":
        other.layers = other.layers[:-1]

    def compiled(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = other(x) if wrong == "a layer left out" else other(x.roll(1, 0))
        return found

    assert not check_part(compiled, model, inputs, context, [7, 64]).ok


def test_a_wide_type_is_held_to_one_limit_for_all_models() -> None:
    model = Deep(torch.float32)

    def wide(count: int) -> tuple[torch.Tensor]:
        return (inputs(count)[0].float(),)

    def compiled(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x) + 2e-4
        return found

    assert not check_part(compiled, model, wide, context, [7]).ok


def test_what_overflows_when_it_is_rounded_otherwise_widens_nothing() -> None:
    eager, rounded = torch.tensor([60000.0, 1.0]).half(), torch.tensor([float("inf"), 1.0]).half()
    assert carried(eager, rounded) == 0.0


@pytest.mark.parametrize(
    ("got", "ok"),
    [([-math.inf, 1.0], True), ([5.0, 1.0], False), ([math.inf, 1.0], False), ([math.nan, 1.0], False)],
)
def test_an_infinity_equals_itself_alone(got: list[float], ok: bool) -> None:
    error, limit = compared(torch.tensor(got), torch.tensor([-math.inf, 1.0]))
    assert (error <= limit) is ok


def test_results_are_moved_to_a_neighbour_alike_each_time_and_not_after() -> None:
    model = nn.Sequential(nn.Identity())
    x = torch.linspace(-4, 4, 513).bfloat16()
    moved = []
    for _ in range(2):
        with rounded_otherwise(model):
            moved.append(model(x))
    assert torch.equal(*moved)
    assert not torch.equal(moved[0], x)
    unit = torch.finfo(torch.bfloat16).eps
    assert bool(((moved[0].float() - x.float()).abs() <= 1.01 * unit * x.float().abs()).all())
    assert torch.equal(model(x), x)
