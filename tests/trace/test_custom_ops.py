"""What of a custom op is in the key: its schema, and the fake implementation that its author wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

from graphkiln.core.trace.custom_ops import check_ops, record_ops
from graphkiln.core.trace.functions import CodeDigests

Register = Callable[[Callable[..., torch.Tensor]], None]
OP = "toy_faked::op.default"


def same_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def same_shape_again(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


@pytest.fixture(params=["library", "custom_op"])
def register(request: pytest.FixtureRequest) -> Iterator[Register]:
    """Registers an op anew each time with another fake, as it is done by hand or by the decorator."""
    made: list[torch.library.Library] = []

    def defined(fake: Callable[..., torch.Tensor]) -> None:
        for library in made:
            library._destroy()
        if request.param == "custom_op":
            schema = "(Tensor x) -> Tensor"
            op: Any = torch.library.custom_op("toy_faked::op", torch.clone, mutates_args=(), schema=schema)
            op.register_fake(fake)
            made[:] = [op._lib]
        else:
            library = torch.library.Library("toy_faked", "DEF")
            library.define("op(Tensor x) -> Tensor")
            torch.library.register_fake("toy_faked::op", fake, lib=library)
            made[:] = [library]

    yield defined
    for library in made:
        library._destroy()


def recorded() -> dict[str, Any]:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.ops.toy_faked.op.default, (graph.placeholder("x"),)))
    return record_ops([fx.GraphModule({}, graph)], CodeDigests())


def test_another_fake_of_an_op_is_a_difference_and_the_same_one_is_not(register: Register) -> None:
    register(same_shape)
    then = recorded()
    assert "same_shape" in str(then[OP]["fake"])
    assert check_ops(then, CodeDigests()) == []
    register(same_shape_again)
    assert [found.name for found in check_ops(then, CodeDigests())] == [f"op {OP}"]
