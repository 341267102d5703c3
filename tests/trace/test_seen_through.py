"""Custom ops that are compiled through to what they run, and those that stay what they are."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from graphkiln.core.errors import Bypass
from graphkiln.core.trace.custom_ops import check_ops, record_ops
from graphkiln.core.trace.functions import CodeDigests


@torch.library.custom_op("seen_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@opaque.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.triton_op("seen_tests::seen_through", mutates_args=())
def seen_through(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


library = torch.library.Library("seen_tests", "FRAGMENT")
library.define("composite(Tensor x) -> Tensor")
library.impl("composite", lambda x: x * 2, "CompositeImplicitAutograd")


def calling(name: str) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(getattr(torch.ops.seen_tests, name).default, (graph.placeholder("x"),)))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_an_op_that_stays_one_is_recorded_by_what_the_compiler_sees_of_it() -> None:
    recorded = record_ops([calling("opaque")], CodeDigests({}))
    assert list(recorded) == ["seen_tests::opaque.default"]
    assert check_ops(recorded, CodeDigests({})) == []


@pytest.mark.parametrize("name", ["seen_through", "composite"])
def test_an_op_that_is_compiled_through_leaves_no_record_and_no_key(name: str) -> None:
    with pytest.raises(Bypass, match=f"seen_tests::{name} is compiled through"):
        record_ops([calling(name)], CodeDigests({}))
