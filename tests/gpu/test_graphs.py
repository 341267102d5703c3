"""Every graph of every mode, captured on the device and held against eager."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capture import CudaCapturer, open_capturer
from graphkiln.core.graphs.capturer import Captured
from graphkiln.core.graphs.errors import CaptureRefused, MovedTensor, OutOfGraphMemory
from graphkiln.core.graphs.examine import capture_all
from graphkiln.core.graphs.plan import GraphPlan, GraphRequest, plan_graphs
from graphkiln.core.report import Silent
from graphkiln.core.runner import Runner
from tests.gpu.conftest import MAX_NUM_SEQS, Load
from tests.gpu.models import SHAPES

# What compilers warn of is told to whoever compiles, and no error here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

# The default list for 256 requests: 51 sizes.
SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
FEW = (1, 2, 4, 8, 24, 64, 256, 512)
MODES = {
    "O1": CUDAGraphMode.PIECEWISE,
    "O2": CUDAGraphMode.FULL_AND_PIECEWISE,
    "FULL": CUDAGraphMode.FULL,
    "FULL_DECODE_ONLY": CUDAGraphMode.FULL_DECODE_ONLY,
    "breakable": CUDAGraphMode.FULL_AND_PIECEWISE,
    "partition": CUDAGraphMode.PIECEWISE,
}
# Kernels that a first use loads stay loaded: what a device may have less of after a second.
STAYS = 16 << 20


def plan_of(mode: CUDAGraphMode, sizes: tuple[int, ...] = SIZES) -> GraphPlan:
    return plan_graphs(GraphRequest(mode, sizes, MAX_NUM_SEQS))


def opened(load: Load, shape: str, way: str) -> CudaCapturer:
    breakable = way == "breakable"
    return open_capturer(load(shape, eager=breakable, partition=way == "partition"), breakable=breakable)


def captured(capturer: CudaCapturer, plan: GraphPlan) -> tuple[Captured, ...]:
    found = capture_all(capturer, plan.descriptors, Silent())
    assert found.failure is None
    return found.captured


@pytest.mark.parametrize(
    ("shape", "way"),
    [(shape, way) for shape in SHAPES for way in MODES if way != "partition" or shape != "llama-1b"],
)
def test_every_size_equals_eager_in_shuffled_order(
    load: Load, shape: str, way: str, figures: dict[str, Any]
) -> None:
    capturer = opened(load, shape, way)
    plan = plan_of(MODES[way])
    before, reserved = capturer.memory(), torch.cuda.memory_reserved()
    found = captured(capturer, plan)
    taken = before.free - capturer.memory().free
    order = list(plan.descriptors)
    random.Random(0).shuffle(order)
    replays = [capturer.replay(descriptor, seed) for seed, descriptor in enumerate(order)]
    capturer.release()
    once = capturer.memory()
    # What the driver keeps of the first capture serves the second.
    captured(capturer, plan)
    capturer.release()
    twice = capturer.memory()
    graphs = {one.descriptor: one.graphs for one in found}
    figures.setdefault("captures", {})[f"{shape} {way}"] = {
        "descriptors": len(found),
        "graphs": sum(graphs.values()),
        "seconds": round(sum(one.seconds for one in found), 3),
        "mib": round(taken / 2**20, 1),
        "mib_by_mode": {
            mode.name: round(sum(one.bytes for one in found if one.descriptor.mode is mode) / 2**20, 1)
            for mode in plan.modes
        },
        "worst_error_of_limit": round(max(one.max_abs_error / one.tolerance for one in replays), 4),
        "kept_by_the_driver_mib": round((before.free - once.free) / 2**20, 1),
        "kept_by_a_second_mib": round((once.free - twice.free) / 2**20, 1),
    }
    layers = SHAPES[shape]["num_hidden_layers"]
    for descriptor, count in graphs.items():
        assert count == (1 if descriptor.mode is CUDAGraphMode.FULL else layers + 1)
    assert [one for one in replays if not one.ok] == []
    assert torch.cuda.memory_reserved() <= reserved
    assert once.free - twice.free < STAYS


def test_a_second_check_takes_and_returns_what_the_first_did(load: Load, figures: dict[str, Any]) -> None:
    capturer = opened(load, "smollm2-135m", "O2")
    plan = plan_of(CUDAGraphMode.FULL_AND_PIECEWISE, FEW)

    def check() -> tuple[list[int], int]:
        graphs = [one.graphs for one in captured(capturer, plan)]
        assert all(capturer.replay(descriptor, 7).ok for descriptor in plan.descriptors)
        capturer.release()
        return graphs, capturer.memory().free

    (first, free), (second, free_again) = check(), check()
    assert second == first
    figures["second_check_keeps_mib"] = round((free - free_again) / 2**20, 1)
    assert free - free_again < STAYS


@pytest.mark.parametrize("way", ["O2", "breakable"])
def test_running_out_of_memory_leaves_no_half_of_a_set(load: Load, way: str) -> None:
    capturer = opened(load, "llama-1b", way)
    capturer.memory()
    reserved = torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = reserved + (48 << 20)
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        found = capture_all(capturer, plan_of(CUDAGraphMode.FULL_AND_PIECEWISE).descriptors, Silent())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert isinstance(found.failure, OutOfGraphMemory)
    assert all(capturer.graphs.count(one.descriptor) == 0 for one in found.captured)
    assert torch.cuda.memory_reserved() <= reserved
    # The device is as good as before.
    plan = plan_of(CUDAGraphMode.FULL_AND_PIECEWISE, FEW)
    captured(capturer, plan)
    assert all(capturer.replay(descriptor, 3).ok for descriptor in plan.descriptors)
    capturer.release()


def test_a_graph_that_is_missing_is_not_captured_while_serving(load: Load) -> None:
    capturer = opened(load, "smollm2-135m", "O2")
    descriptor = plan_of(CUDAGraphMode.PIECEWISE, (8,)).descriptors[0]
    with pytest.raises(CaptureRefused, match="PIECEWISE graph of 8 tokens"):
        capturer.replay(descriptor, 0)


def test_weights_that_moved_are_named_at_the_first_replay(load: Load) -> None:
    capturer = opened(load, "smollm2-135m", "O1")
    runner: Runner = load("smollm2-135m")
    descriptor = plan_of(CUDAGraphMode.PIECEWISE, (8,)).descriptors[0]
    captured(capturer, plan_of(CUDAGraphMode.PIECEWISE, (8,)))
    part = runner.graphs.parts[0]  # type: ignore[union-attr]
    register = next(at for at, value in enumerate(part._fixed) if isinstance(value, torch.Tensor))
    kept = part._fixed[register]
    part._fixed[register] = kept.clone()
    try:
        with pytest.raises(MovedTensor, match=r"captured with \S+ of address"):
            capturer.replay(descriptor, 0)
    finally:
        part._fixed[register] = kept
        capturer.release()
