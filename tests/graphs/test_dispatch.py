"""Which graph serves a step, on worked examples."""

from __future__ import annotations

import pytest

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step, example_query_lens, step_of
from graphkiln.core.graphs.dispatch import Dispatcher
from graphkiln.core.graphs.plan import GraphRequest, plan_graphs

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
PLAN = plan_graphs(GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, (1, 2, 4, 8, 16, 24), 8, (3,)))


@pytest.mark.parametrize(
    ("step", "graph"),
    [
        (Step(4, 12, 3, 3), BatchDescriptor(FULL, 18, 6, 3)),
        (Step(4, 12), BatchDescriptor(PIECEWISE, 16)),
        (Step(4, 12, 2, 2), BatchDescriptor(PIECEWISE, 16)),
        (Step(9, 27, 3, 3), BatchDescriptor(NONE, 27, 9)),
        (Step(0, 0), BatchDescriptor(NONE, 0, 0)),
    ],
)
def test_uniform_decode_is_served_whole_and_what_else_fits_by_pieces(
    step: Step, graph: BatchDescriptor
) -> None:
    assert Dispatcher(PLAN.descriptors).dispatch(step) == graph


def test_without_captured_graphs_a_step_keeps_its_counts() -> None:
    assert Dispatcher(()).dispatch(Step(4, 12, 3, 3)) == BatchDescriptor(NONE, 12, 4)


def test_after_a_capture_that_ended_early_the_sizes_that_are_there_serve() -> None:
    large = [graph for graph in PLAN.descriptors if graph.mode is PIECEWISE and graph.num_tokens >= 16]
    assert Dispatcher(large).dispatch(Step(1, 1, 1, 1)) == BatchDescriptor(PIECEWISE, 16)


@pytest.mark.parametrize(
    ("lengths", "prefills", "step"),
    [
        ((1, 1, 1), (False, False, False), Step(3, 3, 1, 1)),
        ((3, 3), (False, False), Step(2, 6, 3, 3)),
        ((1, 3), (False, False), Step(2, 4, None, 3)),
        ((1, 9), (False, True), Step(2, 10)),
        ((3, 3), (False, True), Step(2, 6)),
        # The last token of a prompt that the cache holds.
        ((1, 1), (False, True), Step(2, 2, 1, 1)),
        ((), (), Step(0, 0)),
    ],
)
def test_a_step_is_uniform_decode_only_without_prefill_and_with_one_length(
    lengths: tuple[int, ...], prefills: tuple[bool, ...], step: Step
) -> None:
    assert step_of(lengths, prefills) == step


@pytest.mark.parametrize(
    ("graph", "lengths"),
    [
        (BatchDescriptor(FULL, 18, 6, 3), (3,) * 6),
        (BatchDescriptor(FULL, 24, 8), (3,) * 8),
        (BatchDescriptor(PIECEWISE, 10), (2, 2, 1, 1, 1, 1, 1, 1)),
        (BatchDescriptor(PIECEWISE, 4), (1, 1, 1, 1)),
    ],
)
def test_an_example_batch_fills_its_graph(graph: BatchDescriptor, lengths: tuple[int, ...]) -> None:
    assert example_query_lens(graph, max_num_seqs=8) == lengths


def test_the_largest_is_captured_first_and_pieces_before_whole_models() -> None:
    order = [(graph.mode.name, graph.num_tokens) for graph in PLAN.descriptors]
    assert order == [
        *(("PIECEWISE", size) for size in (24, 16, 8, 4, 2, 1)),
        *(("FULL", size) for size in (24, 18, 9, 6, 3)),
    ]
