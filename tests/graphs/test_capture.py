"""The capturer of a device, its recorder made up and its memory a number: on a CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.capture import CudaCapturer
from graphkiln.core.graphs.capturer import DeviceMemory
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import OutOfGraphMemory
from graphkiln.core.graphs.examine import capture_all
from graphkiln.core.models.load import build
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.report import Silent
from graphkiln.core.runner import Runner
from tests.graphs.recording import FakeRecorder

DEPLOYMENT = Deployment(
    "preset:llama", block_size=4, max_num_batched_tokens=16, max_num_seqs=8, max_model_len=24
)
LARGE, SMALL = (BatchDescriptor(CUDAGraphMode.PIECEWISE, size) for size in (16, 4))
# A layer is written and attended between graphs: the plain backend looks at both on the host.
GRAPHS = 2 * 4 + 1


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return build(identify(DEPLOYMENT), DEPLOYMENT)


@pytest.fixture
def runner(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> Runner:
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (700, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 200)
    return Runner(served, served.backbone.forward, None, DEPLOYMENT, num_blocks=60)


def test_what_was_captured_equals_eager_on_fresh_inputs_and_borrows_its_blocks(runner: Runner) -> None:
    free = runner.allocator.free
    capturer = CudaCapturer(runner, FakeRecorder(), breakable=True)
    found = capture_all(capturer, [LARGE, SMALL], Silent())
    assert [(one.descriptor, one.graphs, one.bytes) for one in found.captured] == [
        (LARGE, GRAPHS, 0),
        (SMALL, GRAPHS, 0),
    ]
    for seed in range(3):
        for descriptor in (SMALL, LARGE):
            replayed = capturer.replay(descriptor, seed)
            assert replayed.ok, (descriptor, seed, replayed.max_abs_error)
    assert runner.allocator.free == free
    assert capturer.memory() == DeviceMemory(700, 1000, 200)


def test_a_replay_of_another_model_than_was_captured_is_no_equal(runner: Runner) -> None:
    capturer = CudaCapturer(runner, FakeRecorder(), breakable=True)
    capturer.capture(SMALL)
    capturer.eager = lambda *inputs: runner.plain_forward(*inputs) + 1
    assert not capturer.replay(SMALL, 0).ok


@pytest.mark.parametrize("fail_at", [1, 4, GRAPHS + 3])
def test_without_memory_nothing_is_kept_and_the_next_capture_works(runner: Runner, fail_at: int) -> None:
    capturer = CudaCapturer(runner, FakeRecorder(fail_at), breakable=True)
    found = capture_all(capturer, [LARGE, SMALL], Silent())
    assert isinstance(found.failure, OutOfGraphMemory)
    assert found.failure.num_tokens == (4 if fail_at > GRAPHS else 16)
    assert [capturer.graphs.count(graph) for graph in (LARGE, SMALL)] == [0, 0]
    assert capture_all(capturer, [LARGE, SMALL], Silent()).failure is None
    assert capturer.replay(LARGE, 1).ok


def test_an_error_that_is_none_of_memory_is_not_taken_for_one(runner: Runner) -> None:
    def broken(*inputs: torch.Tensor) -> torch.Tensor:
        if runner.graphs is not None and runner.graphs.graphs._open:
            raise RuntimeError("a kernel failed")
        return runner.served.backbone.forward(*inputs)  # type: ignore[no-any-return]

    other = Runner(runner.served, broken, None, DEPLOYMENT, num_blocks=50)
    capturer = CudaCapturer(other, FakeRecorder(), breakable=True)
    runner.graphs = other.graphs
    with pytest.raises(RuntimeError, match="a kernel failed"):
        capturer.capture(SMALL)


def test_a_release_drops_all_and_capturing_anew_works(runner: Runner) -> None:
    recorder = FakeRecorder()
    capturer = CudaCapturer(runner, recorder, breakable=True)
    for _ in range(2):
        capturer.capture(SMALL)
        assert capturer.replay(SMALL, 0).ok
        capturer.release()
        assert capturer.graphs.count(SMALL) == 0
    assert recorder.ended == 2 * GRAPHS


def test_blocks_that_requests_hold_are_left_alone(served: ServedModel, runner: Runner) -> None:
    held = runner.allocator.take(20)
    caches = runner.kv_caches()
    for cache in caches.values():
        cache.key[held] = 7.0
    capturer = CudaCapturer(runner, FakeRecorder(), breakable=True)
    capturer.capture(LARGE)
    capturer.replay(LARGE, 0)
    assert all(bool((cache.key[held] == 7.0).all()) for cache in caches.values())


def test_a_restored_model_is_compared_with_its_compiled_code(served: ServedModel, runner: Runner) -> None:
    restored = Runner(
        dataclasses.replace(served, restored=True), runner.plain_forward, None, DEPLOYMENT, num_blocks=50
    )
    capturer = CudaCapturer(restored, FakeRecorder(), breakable=True)
    assert capturer.eager is restored.plain_forward
