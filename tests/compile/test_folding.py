"""Constants that are computed while compiling: what every device rounds alike, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._inductor.fx_passes.joint_graph import constant_fold_uniform_value
from torch.fx.experimental.proxy_tensor import make_fx

from graphkiln.core.compile.folding import exact_folding, is_exact

CONVERT = torch.ops.prims.convert_element_type.default
Function = Callable[[torch.Tensor], torch.Tensor]


def lowered(function: Function) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(torch.ones(4))


def folded(function: Function) -> set[str]:
    """The operators that are left once Inductor has folded what is constant."""
    graph = lowered(function)
    constant_fold_uniform_value(graph)
    graph.graph.eliminate_dead_code()
    calls = (node.target for node in graph.graph.nodes if node.op == "call_function")
    return {getattr(target, "_opname", str(target)) for target in calls}


def test_a_sine_of_a_constant_is_left_to_the_device_and_a_product_is_not() -> None:
    def sine(x: torch.Tensor) -> torch.Tensor:
        return x + torch.full((4,), 1.3).sin()

    def product(x: torch.Tensor) -> torch.Tensor:
        return x + torch.full((4,), 0.1) * 3.0

    assert "sin" not in folded(sine)
    with exact_folding():
        assert "sin" in folded(sine)
        assert "mul" not in folded(product)


CASES: list[tuple[Function, bool]] = [
    (lambda x: x * 3.0, True),
    (lambda x: torch.maximum(x, x + 1), True),
    (lambda x: CONVERT(x > 0, torch.int64), True),
    (lambda x: torch.where(x > 0, x, -x).to(torch.bfloat16), True),
    (lambda x: x.expand(2, 4), True),
    (lambda x: x.exp(), False),
    (lambda x: x / 3.0, False),
    (lambda x: torch.add(x, x, alpha=2), False),
    (lambda x: torch.addcmul(x, x, x), False),
    (lambda x: CONVERT(x, torch.int32), False),
    (lambda x: x.to(torch.complex64) * 2, False),
]


@pytest.mark.parametrize(("function", "exact"), CASES)
def test_an_operator_is_folded_only_where_all_devices_agree(function: Function, exact: bool) -> None:
    calls = [node for node in lowered(function).graph.nodes if node.op == "call_function"]
    assert all(is_exact(node) for node in calls) is exact
