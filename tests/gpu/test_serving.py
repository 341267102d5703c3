"""What a user's server calls, and what `graphkiln check` does, on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphkiln.core import CompilationConfig, load_model
from graphkiln.core.check import check
from graphkiln.core.compile.check import compared
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import Step
from graphkiln.core.runner import Batch, Request, Runner
from tests.gpu.conftest import Load, deployment
from tests.gpu.models import folder_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SIZES = (1, 2, 4, 8, 16, 32)
# The requests of each step, (tokens in the cache, new tokens), and what has to serve it.
STEPS: list[tuple[list[tuple[int, int]], CUDAGraphMode]] = [
    ([(0, 7), (0, 20)], CUDAGraphMode.PIECEWISE),
    ([(7, 1), (20, 1), (0, 3)], CUDAGraphMode.PIECEWISE),
    ([(8, 1), (21, 1), (3, 1)], CUDAGraphMode.FULL),
    ([(9, 1)], CUDAGraphMode.FULL),
    ([(10, 30), (22, 30)], CUDAGraphMode.NONE),
]


def batches(runner: Runner) -> list[Batch]:
    blocks = [tuple(runner.allocator.take(8)) for _ in range(3)]
    for held in blocks:
        runner.allocator.give_back(held)
    return [
        Batch(
            tuple(
                Request(tuple(range(100 + cached, 100 + cached + new)), cached, blocks[at])
                for at, (cached, new) in enumerate(requests)
            )
        )
        for requests, _ in STEPS
    ]


def test_a_loaded_model_dispatches_each_step_and_gives_what_it_gives_without_graphs(
    load: Load, folders: Path, cache_root: Path, figures: dict[str, Any]
) -> None:
    load("smollm2-135m")
    config = CompilationConfig(cudagraph_capture_sizes=SIZES)
    runner = load_model(deployment(folder_of("smollm2-135m", folders)), config, cache_root=cache_root)
    assert runner.report is not None
    assert runner.report.outcome == "hit"
    assert runner.report.notes == () or not any("without CUDA graphs" in note for note in runner.report.notes)
    figures["start_s"] = {name: round(seconds, 2) for name, seconds in runner.report.phases}
    assert runner.graphs is not None
    for requests, mode in STEPS:
        new = [count for _, count in requests]
        uniform = 1 if set(new) == {1} else None
        assert runner.graphs.dispatch(Step(len(new), sum(new), uniform, uniform)).mode is mode
    with_graphs = [runner.execute(batch).clone() for batch in batches(runner)]
    tokens = runner.generate_greedy([5, 6, 7, 8], 12)
    assert len(tokens) == 12
    runner.graphs.release()
    for got, batch in zip(with_graphs, batches(runner), strict=True):
        # Both are compiled, one padded: what differs is the order of sums. What is wrong differs by about 1.
        wanted = runner.execute(batch)
        error, _ = compared(got, wanted)
        assert error <= 0.1 * float(wanted.abs().max())


def test_the_check_of_a_deployment_captures_proves_and_gives_back(
    load: Load, folders: Path, cache_root: Path, figures: dict[str, Any]
) -> None:
    load("smollm2-135m")
    config = CompilationConfig(cudagraph_capture_sizes=SIZES)
    report = check(deployment(folder_of("smollm2-135m", folders)), config, cache_root=cache_root)
    assert report.ok
    assert report.capture is not None
    assert report.start is not None
    assert report.start.outcome == "hit"
    figures["check"] = {
        "phases": {name: round(seconds, 2) for name, seconds in report.phases},
        "document": dict(report.capture),
    }
