"""Fix functionalisation: which functionalised writes become writes in place, and that nobody can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2

from graphkiln.core.passes.functionalization import fix_functionalization
from tests.passes.graphs import names, outcome, traced

X = torch.arange(12, dtype=torch.float32).reshape(3, 4)


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[Any]:
    """Ops that fill and that change an argument, as attention does."""
    library = torch.library.Library("pf_toy", "DEF")
    library.define("fill(Tensor x, Tensor(a!) out) -> ()")
    library.impl("fill", _double, "CPU")
    library.impl("fill", lambda x, out: None, "Meta")
    library.define("bump(Tensor x, Tensor(a!) out) -> Tensor")
    library.impl("bump", lambda x, out: out.add_(x).sum(), "CPU")
    library.impl("bump", lambda x, out: out.new_empty([]), "Meta")
    yield torch.ops.pf_toy
    library._destroy()


def _double(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


# Typed as tuples of tensors, which leaves the results that are lists or None out.
functional: Any = auto_functionalized_v2
functional_before: Any = auto_functionalized


def fill(x: Any, out: Any) -> Any:
    return functional(torch.ops.pf_toy.fill.default, x=x, _out_base_index=0, _all_bases=[out])[1]


def bump(x: Any, out: Any) -> Any:
    return functional(torch.ops.pf_toy.bump.default, x=x, _out_base_index=0, _all_bases=[out])


def filled(x: Any) -> Any:
    return fill(x, torch.empty_like(x)).sin()


def filled_the_old_way(x: Any) -> Any:
    out = torch.empty_like(x)
    return functional_before(torch.ops.pf_toy.fill.default, x=x, out=out)[1].sin()


def changed_with_a_result(x: Any) -> Any:
    total, out = bump(x, x.cos())
    return total + out


def twice_in_a_row(x: Any) -> Any:
    return bump(x, bump(x, x.cos())[1])[1] + 1


@pytest.mark.parametrize(
    ("function", "count"),
    [(filled, 1), (filled_the_old_way, 1), (changed_with_a_result, 1), (twice_in_a_row, 2)],
)
def test_a_write_that_nobody_can_tell_is_in_place(function: Callable[..., Any], count: int) -> None:
    wanted = function(X)
    module = traced(function, X)
    assert fix_functionalization(module.graph) == count
    assert not [name for name in names(module.graph) if "auto_functionalized" in name]
    assert torch.equal(outcome(module, X), wanted)


def input_written(x: Any) -> Any:
    return fill(x, x).sin()


def old_value_read_later(x: Any) -> Any:
    out = x.cos()
    return bump(x, out)[1] + out


def view_of_the_old_value_read_later(x: Any) -> Any:
    out = x.cos()
    old = out.view(-1)
    return bump(x, out)[1], old.sin()


def old_value_returned(x: Any) -> Any:
    out = x.cos()
    return bump(x, out)[1], out


def argument_that_shares_memory(x: Any) -> Any:
    out = x.cos()
    return bump(out.view(3, 4), out)[1].sin()


def part_of_a_base(x: Any) -> Any:
    found = functional(
        torch.ops.pf_toy.fill.default,
        x=x[:1],
        _out_base_index=0,
        _out_slice_dim=0,
        _out_slice_start=0,
        _out_slice_end=1,
        _all_bases=[x.cos()],
    )
    return found[1].sin()


@pytest.mark.parametrize(
    "function",
    [
        input_written, old_value_read_later, view_of_the_old_value_read_later, old_value_returned,
        argument_that_shares_memory, part_of_a_base,
    ],
)  # fmt: skip
def test_a_write_that_somebody_could_tell_is_left_to_inductor(function: Callable[..., Any]) -> None:
    module = traced(function, X)
    before = names(module.graph)
    assert fix_functionalization(module.graph) == 0
    assert names(module.graph) == before
