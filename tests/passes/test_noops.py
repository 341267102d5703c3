"""No-op elimination: what is removed, what is not, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphkiln.core.passes.cleanup import cleanup
from graphkiln.core.passes.noops import eliminate_noops
from tests.passes.graphs import names, outcome, traced

X = torch.arange(30, dtype=torch.float32).reshape(5, 6)
aten, prims = torch.ops.aten, torch.ops.prims


def same_size(x: Any) -> Any:
    return aten.view(x.sin(), [x.shape[0], x.shape[1]]).cos()


def chain_back(x: Any) -> Any:
    return x.sin().reshape(-1).reshape(x.shape[0], x.shape[1]).cos()


def whole_slice(x: Any) -> Any:
    return aten.slice(x.sin(), 0, 0, x.shape[0]).cos()


def same_dtype(x: Any) -> Any:
    return prims.convert_element_type(x.sin(), torch.float32).cos()


def expanded_to_itself(x: Any) -> Any:
    return x.sin().expand(x.shape[0], x.shape[1]).cos()


def covering_scatter(x: Any) -> Any:
    return aten.slice_scatter(torch.zeros_like(x), x.sin(), 0, 0, x.shape[0]).cos()


def copied(x: Any) -> Any:
    return aten.clone(x.sin()).cos()


def permuted_to_itself(x: Any) -> Any:
    return x.sin().permute(0, 1).cos()


@pytest.mark.parametrize(
    "function",
    [
        same_size, chain_back, whole_slice, same_dtype, expanded_to_itself, covering_scatter, copied,
        permuted_to_itself,
    ],
)  # fmt: skip
def test_what_changes_nothing_is_removed(function: Any) -> None:
    module = traced(function, X)
    assert eliminate_noops(module.graph) >= 1
    cleanup(module.graph)
    assert names(module.graph) == ["aten.sin", "aten.cos"]
    assert torch.equal(outcome(module, X), function(X))


def transposed_square(x: Any) -> Any:
    return x.sin().t().cos()


def half(x: Any) -> Any:
    return aten.slice(x.sin(), 0, 0, x.shape[0] // 2).cos()


def other_dtype(x: Any) -> Any:
    return prims.convert_element_type(x.sin(), torch.float64).cos()


def every_second(x: Any) -> Any:
    return x.sin()[::2].cos()


def reshaped_after_a_transpose(x: Any) -> Any:
    return x.sin().t().reshape(-1).reshape(x.shape[0], x.shape[1]).cos()


def scattered_half(x: Any) -> Any:
    return aten.slice_scatter(x.cos(), x.sin()[: x.shape[0] // 2], 0, 0, x.shape[0] // 2).cos()


def input_returned(x: Any) -> Any:
    return aten.view(x, [x.shape[0], x.shape[1]])


def copy_returned(x: Any) -> Any:
    return aten.view(aten.clone(x), [-1])


def one_result_twice(x: Any) -> Any:
    y = x.sin()
    return y, aten.clone(y)


def overwritten_after_the_copy(x: Any) -> Any:
    y = x.sin()
    before = aten.clone(y)
    aten.mul_(y, 2.0)
    return before.cos(), y.cos()


@pytest.mark.parametrize(
    "function",
    [
        transposed_square, half, other_dtype, every_second, scattered_half, input_returned, copy_returned,
        one_result_twice, overwritten_after_the_copy,
    ],
)  # fmt: skip
def test_what_changes_something_stays(function: Any) -> None:
    square = X[:, :5].contiguous()
    module = traced(function, square)
    before = names(module.graph)
    assert eliminate_noops(module.graph) == 0
    assert names(module.graph) == before


def test_a_reshape_of_a_reshape_reads_the_source() -> None:
    def function(x: Any) -> Any:
        return x.sin().reshape(1, -1, x.shape[1]).reshape(-1).cos()

    module = traced(function, X)
    assert eliminate_noops(module.graph) == 1
    cleanup(module.graph)
    assert names(module.graph) == ["aten.sin", "aten.view", "aten.cos"]
    assert torch.equal(outcome(module, X), function(X))


@pytest.mark.parametrize("function", [reshaped_after_a_transpose, scattered_half, overwritten_after_the_copy])
def test_numbers_stay_where_reshapes_copy_and_things_are_written(function: Any) -> None:
    module = traced(function, X)
    eliminate_noops(module.graph)
    cleanup(module.graph)
    for got, wanted in zip(outcome(module, X), function(X.clone()), strict=True):
        assert torch.equal(got, wanted)


def test_a_copy_of_a_copy_that_is_returned_stays_apart_from_the_input() -> None:
    def function(x: Any) -> Any:
        return aten.view(aten.clone(aten.clone(x)), [-1])

    module = traced(function, X)
    eliminate_noops(module.graph)
    cleanup(module.graph)
    module.recompile()
    assert module(X).data_ptr() != X.data_ptr()


def test_no_guard_is_added() -> None:
    module = traced(chain_back, X)
    node = next(node for node in module.graph.nodes if node.op == "placeholder")
    env = node.meta["val"].fake_mode.shape_env
    before = len(env.guards)
    eliminate_noops(module.graph)
    assert len(env.guards) == before
