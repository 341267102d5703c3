"""Capture sizes: the observed table, and what is ours: texts, decisions, bad schedules."""

from __future__ import annotations

from typing import Any

import pytest

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.resolve import Resolution, resolve
from graphkiln.core.deployment import Deployment
from tests.config.differences import CAPTURE_SIZES
from tests.config.oracle import compare, facts, needs, outcome

CATEGORIES = {
    "empty_list": "the list is empty",
    "max_below_one": "is below 1; -cc.cudagraph_mode=NONE",
    "max_differs_from_list": "is not the largest of cudagraph_capture_sizes",
    "batched_tokens_below_seqs": "is below max_num_seqs",
    "invalid_value": "must be at least 1",
    "size_below_one": "is below 1",
}
CONFIG = (
    "performance_mode",
    "cudagraph_capture_sizes",
    "max_cudagraph_capture_size",
    "cudagraph_mode",
    "enforce_eager",
)


def resolved(**values: Any) -> Resolution:
    """Returns the resolution of config fields and facts, mixed as they come."""
    config = {name: values.pop(name) for name in CONFIG if values.get(name) is not None}
    named = {name: value for name, value in values.items() if name not in CONFIG}
    return resolve(CompilationConfig.from_user(config), facts(**named))


def answer(given: dict[str, Any]) -> dict[str, Any]:
    def run() -> dict[str, Any]:
        limits = ("max_num_batched_tokens", "max_num_seqs")
        Deployment("m", **{name: given[name] for name in limits})
        values = {**given, "draft_schedule": tuple(tuple(row) for row in given.get("draft_schedule", ()))}
        effective = resolved(**values).effective
        sizes = list(effective.capture_sizes)
        mode = effective.cudagraph_mode.name
        return {"sizes": sizes, "max": max(sizes, default=0), "cudagraph_mode": mode}

    categories = dict(CATEGORIES)
    if given["cudagraph_capture_sizes"] is None or min(given["cudagraph_capture_sizes"], default=1) > 0:
        del categories["size_below_one"]
    else:
        del categories["max_below_one"]
    return outcome(run, categories)


@needs("capture_sizes")
def test_sizes_are_those_observed() -> None:
    compare("capture_sizes", answer, CAPTURE_SIZES)


def decisions(**values: Any) -> dict[str, tuple[Any, Any, str]]:
    found = resolved(**values).decisions
    return {made.field: (made.asked, made.got, made.reason) for made in found}


def test_a_list_that_is_changed_says_what_was_asked_and_why() -> None:
    made = decisions(max_num_seqs=8, max_num_batched_tokens=8, cudagraph_capture_sizes=[4, 2, 15, 2])
    assert made["cudagraph_capture_sizes"] == (
        [4, 2, 15, 2], [2, 4], "sizes above max_num_batched_tokens 8 are never reached",
    )  # fmt: skip
    made = decisions(cudagraph_capture_sizes=[4, 2])
    assert made["cudagraph_capture_sizes"] == ([4, 2], [2, 4], "in ascending order, each size once")
    assert "cudagraph_capture_sizes" not in decisions(cudagraph_capture_sizes=[2, 4])


def test_a_list_that_becomes_empty_is_said_once() -> None:
    made = resolved(max_num_seqs=8, max_num_batched_tokens=8, cudagraph_capture_sizes=[16, 32])
    about = [decision for decision in made.decisions if "sizes" in decision.field]
    assert [(row.asked, row.got) for row in about] == [([16, 32], [])]
    assert about[0].reason == "every size is above max_num_batched_tokens 8: no graph is captured"


def test_a_list_for_no_graphs_is_dropped_with_a_word() -> None:
    made = decisions(cudagraph_mode="NONE", cudagraph_capture_sizes=[1, 2])
    assert made["cudagraph_capture_sizes"] == ([1, 2], [], "no CUDA graphs are captured")


def test_a_maximum_that_is_not_reached_becomes_the_largest_size() -> None:
    made = decisions(max_num_seqs=128, max_num_batched_tokens=2048, max_cudagraph_capture_size=257)
    assert made["max_cudagraph_capture_size"] == (257, 256, "the largest size of the generated list")
    made = decisions(max_num_seqs=3, max_num_batched_tokens=3, max_cudagraph_capture_size=2048)
    assert made["max_cudagraph_capture_size"][:2] == (2048, 3)


@pytest.mark.parametrize("sizes", [[0], [4, -1]])
def test_a_size_below_one_is_bad_input_whatever_the_mode(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^cudagraph_capture_sizes: -?\d is below 1$"):
        resolved(cudagraph_mode="NONE", cudagraph_capture_sizes=sizes)


def test_interactivity_captures_each_small_size() -> None:
    assert resolved(performance_mode="interactivity").effective.capture_sizes[:33] == (*range(1, 33), 40)
    with pytest.raises(ValueError, match="balanced, interactivity, throughput"):
        resolved(performance_mode="fast")


@pytest.mark.parametrize(
    "rows",
    [((2, 8, 3),), ((1, 8, 3), (4, 9, 2), (3, 9, 1)), ((1, 0, 3),), ((1, 8, 3), (1, 9, 2))],
)
def test_a_schedule_that_does_not_ascend_from_one_is_bad_input(
    rows: tuple[tuple[int, int, int], ...],
) -> None:
    with pytest.raises(ValueError, match="draft_schedule"):
        resolved(num_speculative_tokens=3, draft_schedule=rows)
