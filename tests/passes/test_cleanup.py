"""Cleanup: order, constants, dead nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphkiln.core.errors import CompileError
from graphkiln.core.passes.cleanup import cleanup, drop_dead, merge_constants, sort_topologically
from tests.passes.graphs import names, outcome, traced

X = torch.arange(12, dtype=torch.float32).reshape(3, 4)
aten = torch.ops.aten


@pytest.fixture
def writes_elsewhere() -> Iterator[Any]:
    """An op that says of itself that it writes nothing, as one does that fills a cache."""
    library = torch.library.Library("pc_toy", "DEF")
    library.define("note(Tensor x) -> Tensor")
    library.impl("note", lambda x: x.new_empty(0), "CompositeExplicitAutograd")
    yield torch.ops.pc_toy.note
    library._destroy()


def test_nodes_in_any_order_are_sorted_and_sorted_ones_stay() -> None:
    module = traced(lambda x: (x.sin().cos(), x.exp()), X)
    nodes = list(module.graph.nodes)
    sort_topologically(module.graph)
    assert list(module.graph.nodes) == nodes
    sine, cosine = (
        next(node for node in nodes if node.target is op) for op in (aten.sin.default, aten.cos.default)
    )
    sine.prepend(cosine)
    assert names(module.graph)[:2] == ["aten.cos", "aten.sin"]
    cleanup(module.graph)
    assert names(module.graph)[:2] == ["aten.sin", "aten.cos"]
    assert torch.equal(outcome(module, X)[0], X.sin().cos())


def test_a_cycle_is_refused() -> None:
    module = traced(lambda x: x.sin().cos(), X)
    sine, cosine = (node for node in module.graph.nodes if node.op == "call_function" and node.target != "")
    sine.args = (cosine,)
    with pytest.raises(CompileError, match="cycle"):
        sort_topologically(module.graph)


def test_equal_constants_become_one() -> None:
    def function(x: Any) -> Any:
        return x + torch.full([4], 2.0) + torch.full([4], 2.0).sin() + torch.full([4], 2)

    module = traced(function, X)
    assert merge_constants(module.graph) == 1
    assert names(module.graph).count("aten.full") == 2
    assert torch.equal(outcome(module, X), function(X))


def test_constants_that_are_returned_or_written_stay_apart() -> None:
    def function(x: Any) -> Any:
        written = torch.zeros([4])
        written.add_(1.0)
        return torch.zeros([4]), torch.zeros([4]), x + written + torch.zeros([4])

    module = traced(function, X)
    assert merge_constants(module.graph) == 0


def test_uninitialised_memory_is_no_constant() -> None:
    module = traced(lambda x: x + torch.empty([4]) + torch.empty([4]), X)
    assert merge_constants(module.graph) == 0


def test_what_nobody_reads_is_dropped(writes_elsewhere: Any) -> None:
    def function(x: Any) -> Any:
        x.sin().cos()
        torch.rand(3)
        writes_elsewhere(x)
        x.exp().add_(1.0)
        return x + 1

    module = traced(function, X)
    assert drop_dead(module.graph) >= 2
    left = names(module.graph)
    assert "aten.sin" not in left
    assert "aten.cos" not in left
    # A draw moves the generator, an op of others may do anything, and a write is a write.
    assert {"aten.rand", "pc_toy.note", "aten.add_.Tensor"} <= set(left)
    assert torch.equal(outcome(module, X), X + 1)
