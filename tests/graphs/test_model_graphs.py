from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphkiln.core import start
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.capture import open_capturer
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import CaptureRefused, NoCudaDevice
from graphkiln.core.graphs.model_graphs import compiled_parts, longest_query
from graphkiln.core.models.load import build
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.runner import Batch, Request, Runner
from graphkiln.core.start import load_model
from graphkiln.core.target import named
from graphkiln.core.trace.decorator import serving_below
from graphkiln.core.trace.guarded import guarded
from graphkiln.core.tuning import tune
from tests.graphs.recording import FakeRecorder

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE
PIECES = BatchDescriptor(PIECEWISE, 8)


DEPLOYMENT = Deployment("preset:llama", block_size=4, max_num_batched_tokens=16, max_num_seqs=8)


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return build(identify(DEPLOYMENT), DEPLOYMENT)


@pytest.fixture
def runner(served: ServedModel) -> Runner:
    return Runner(served, served.backbone.forward, None, DEPLOYMENT)


def batch(runner: Runner, lengths: list[int]) -> Batch:
    requests = []
    for length in lengths:
        blocks = tuple(runner.allocator.take(2))
        requests.append(Request(tuple(range(3, 3 + length)), 0, blocks))
    return Batch(tuple(requests))


def capture(runner: Runner, descriptor: BatchDescriptor, lengths: list[int]) -> None:
    graphs = runner.use_graphs(FakeRecorder(), breakable=True)
    example = batch(runner, lengths)
    with graphs.graphs.window():
        runner.run(runner.prepare(example, descriptor), descriptor)
    for request in example.requests:
        runner.allocator.give_back(request.blocks)


def test_steps_are_served_by_what_was_captured_and_give_the_same(runner: Runner) -> None:
    steps = [[3, 2], [8], [1, 1, 1], [1], [4, 4, 4]]
    wanted = [runner.execute(batch(runner, lengths)) for lengths in steps]
    capture(runner, PIECES, [4, 4])
    graphs = runner.use_graphs(FakeRecorder())
    graphs.serve([PIECES])
    recorder = graphs.graphs.recorder
    assert isinstance(recorder, FakeRecorder)
    replays = []
    for lengths, logits in zip(steps, wanted, strict=True):
        before = recorder.replays
        torch.testing.assert_close(runner.execute(batch(runner, lengths)), logits)
        replays.append(recorder.replays - before)
    # Four layers break twice each with the plain backend: the caches are written between graphs too.
    assert replays == [9, 9, 9, 9, 0]


def test_nothing_is_replayed_before_it_is_served_nor_after_a_release(runner: Runner) -> None:
    capture(runner, PIECES, [4, 4])
    graphs = runner.use_graphs(FakeRecorder())
    recorder = graphs.graphs.recorder
    assert isinstance(recorder, FakeRecorder)
    runner.execute(batch(runner, [8]))
    graphs.serve([PIECES])
    graphs.release()
    runner.execute(batch(runner, [8]))
    assert recorder.replays == 0
    graphs.serve([PIECES])
    with pytest.raises(CaptureRefused):
        runner.execute(batch(runner, [8]))


def test_generated_tokens_are_the_same_with_graphs(runner: Runner) -> None:
    wanted = runner.generate_greedy([5, 6, 7, 8, 9], 6)
    capture(runner, PIECES, [4, 4])
    one = BatchDescriptor(PIECEWISE, 1)
    capture(runner, one, [1])
    runner.use_graphs(FakeRecorder()).serve([PIECES, one])
    assert runner.generate_greedy([5, 6, 7, 8, 9], 6) == wanted


@pytest.mark.parametrize(
    ("descriptor", "longest"),
    [
        (BatchDescriptor(FULL, 8, 8, 1), 1),
        (BatchDescriptor(FULL, 8, 2, 4), 4),
        (BatchDescriptor(FULL, 8, 8, max_query_len=3), 3),
        (BatchDescriptor(FULL, 8, 8), 8),
        (BatchDescriptor(PIECEWISE, 8), None),
        (BatchDescriptor(NONE, 8, 8, 1), None),
    ],
)
def test_a_whole_graph_is_right_for_the_longest_request_it_may_get(
    descriptor: BatchDescriptor, longest: int | None
) -> None:
    assert longest_query(descriptor) == longest


def test_a_model_on_a_cpu_has_no_capturer(runner: Runner) -> None:
    with pytest.raises(NoCudaDevice, match="the model lies on cpu"):
        open_capturer(runner)
    assert runner.graphs is None


def test_a_forward_without_compiled_parts_has_none(runner: Runner) -> None:
    forward: Callable[..., Any] = functools.partial(runner.plain_forward)
    assert compiled_parts(forward) == ()


BELOW = """
import torch
from graphkiln.core import support_torch_compile

@support_torch_compile
class Half(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Half(), Half()

    def example_inputs(self, num_tokens):
        return (torch.ones(num_tokens, 4),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) + 1.0
"""


def test_parts_below_the_root_are_found_behind_its_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halves.py").write_text(BELOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    deployment = Deployment("halves:Whole", max_num_batched_tokens=16)
    runner = load_model(deployment, CompilationConfig(backend="eager"))
    whole: Any = runner.served.backbone
    parts = compiled_parts(runner.plain_forward)
    assert [part.door.smallest for part in parts] == [1, 1]
    assert list(serving_below(whole)) == list(parts)

    # What tunes asks the same way: it finds something to call, and calls it in its range.
    here = SimpleNamespace(kind="cuda", missing_here=tuple, name="cuda", as_factor=dict)
    plan = SimpleNamespace(label="halves", largest=16)
    monkeypatch.setattr(named, "find_target", lambda name: here)
    monkeypatch.setattr(start, "load_built", lambda *asked, **where: (runner, plan))
    assert tune(deployment, None, tmp_path / "choices.json").counts == (1, 2, 7, 16)

    (first, _) = parts
    assert compiled_parts(guarded(first, {}, {}, whole)) == (first,)
    # What a decorator put around a forward has no object of its own behind it.
    monkeypatch.setattr(type(whole), "forward", torch.no_grad()(type(whole).forward))
    assert compiled_parts(whole.forward) == parts


def test_equal_pieces_have_a_graph_for_each_place_where_they_run() -> None:
    config = CompilationConfig(backend="eager", cudagraph_mode=PIECEWISE)
    compiled = load_model(DEPLOYMENT, config)
    steps = [[4, 4], [3, 2], [8]]
    wanted = [compiled.execute(batch(compiled, lengths)) for lengths in steps]
    graphs = compiled.use_graphs(FakeRecorder())
    example = batch(compiled, [4, 4])
    with graphs.graphs.window():
        compiled.run(compiled.prepare(example, PIECES), PIECES)
    # Of the five pieces between four layers' attention, the three in the middle are one.
    assert graphs.graphs.count(PIECES) == 5
    graphs.serve([PIECES])
    recorder = graphs.graphs.recorder
    assert isinstance(recorder, FakeRecorder)
    for lengths, logits in zip(steps, wanted, strict=True):
        torch.testing.assert_close(compiled.execute(batch(compiled, lengths)), logits)
    assert recorder.replays == 15
