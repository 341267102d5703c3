from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.breakable import BreakableCapture, breaks_graphs
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import CaptureRefused, MovedTensor, NestedCapture
from graphkiln.core.graphs.graph_set import GraphSet
from graphkiln.core.graphs.wrapper import BreakableGraphWrapper, CUDAGraphWrapper
from graphkiln.core.ops.forward_context import ForwardContext, set_forward_context
from graphkiln.core.ops.kv_cache import build_metadata
from tests.graphs.recording import FakeRecorder

PIECEWISE, FULL, NONE = CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL, CUDAGraphMode.NONE
METADATA = build_metadata([1], [1], [[0]], 4, torch.device("cpu"))


def context(mode: CUDAGraphMode, tokens: int = 4) -> Any:
    descriptor = BatchDescriptor(mode, tokens)
    return set_forward_context(ForwardContext({}, METADATA, {}, mode=mode, descriptor=descriptor))


class Counted:
    """A callable that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls, self.label = function, 0, "inside"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


def wrapped(mode: CUDAGraphMode | None = PIECEWISE) -> tuple[CUDAGraphWrapper, Counted, GraphSet]:
    runnable = Counted(lambda inputs: (inputs[0] * 2 + inputs[1],))
    graphs = GraphSet(FakeRecorder())
    return (
        CUDAGraphWrapper(runnable, graphs, name="piece 0", mode=mode, argument_names=("x", "y")),
        runnable,
        graphs,
    )


def test_a_replay_reads_new_values_and_does_not_call() -> None:
    wrapper, runnable, graphs = wrapped()
    x, y = torch.ones(4), torch.ones(4)
    with graphs.window(), context(PIECEWISE):
        assert wrapper([x, y])[0].tolist() == [3.0] * 4
    x.fill_(5)
    with context(PIECEWISE):
        first = wrapper([x, y])[0]
        x.fill_(6)
        second = wrapper([x, y])[0]
    assert first.tolist() == second.tolist() == [13.0] * 4
    assert runnable.calls == 1
    assert graphs.count(BatchDescriptor(PIECEWISE, 4)) == 1


@pytest.mark.parametrize("mode", [NONE, FULL])
def test_another_mode_runs_the_callable(mode: CUDAGraphMode) -> None:
    wrapper, runnable, _ = wrapped()
    with context(mode):
        wrapper([torch.ones(4), torch.ones(4)])
    wrapper([torch.ones(4), torch.ones(4)])
    assert runnable.calls == 2


def test_without_a_mode_of_its_own_any_graph_mode_is_served() -> None:
    wrapper, _, graphs = wrapped(None)
    x = torch.ones(4)
    with graphs.window():
        for mode in (FULL, PIECEWISE, NONE):
            with context(mode):
                wrapper([x, x])
    assert [graphs.count(BatchDescriptor(mode, 4)) for mode in (FULL, PIECEWISE, NONE)] == [1, 1, 0]


def test_a_missing_graph_is_refused_outside_the_window() -> None:
    wrapper, runnable, _ = wrapped()
    with (
        context(PIECEWISE, 8),
        pytest.raises(CaptureRefused, match="piece 0 has no PIECEWISE graph of 8 tokens"),
    ):
        wrapper([torch.ones(8), torch.ones(8)])
    assert runnable.calls == 0


@pytest.mark.parametrize(
    ("moved", "what"),
    [
        (lambda x: x.clone(), "address"),
        (lambda x: x[:2], "shape"),
        (lambda x: x.view(torch.int32), "dtype"),
        (lambda x: x.as_strided((4,), (0,)), "strides"),
    ],
)
def test_the_first_replay_names_a_tensor_that_moved(
    moved: Callable[[torch.Tensor], torch.Tensor], what: str
) -> None:
    wrapper, _, graphs = wrapped()
    x, y = torch.ones(4), torch.ones(4)
    with graphs.window(), context(PIECEWISE):
        wrapper([x, y])
    with context(PIECEWISE), pytest.raises(MovedTensor, match="piece 0 was captured with y of") as caught:
        wrapper([x, moved(y)])
    assert what in caught.value.captured


def test_a_number_is_held_to_its_value() -> None:
    graphs = GraphSet(FakeRecorder())
    wrapper = CUDAGraphWrapper(lambda inputs: (inputs[1] * 2,), graphs, name="piece", mode=PIECEWISE)
    x = torch.ones(4)
    with graphs.window(), context(PIECEWISE):
        wrapper([4, x])
    with context(PIECEWISE), pytest.raises(MovedTensor, match="argument 0 of 4, and is replayed with 5"):
        wrapper([5, x])


def test_only_the_first_replay_of_each_size_is_checked() -> None:
    wrapper, _, graphs = wrapped()
    x, y = torch.ones(4), torch.ones(4)
    with graphs.window(), context(PIECEWISE):
        wrapper([x, y])
    with context(PIECEWISE):
        wrapper([x, y])
        assert wrapper([x.clone(), y])[0].tolist() == [3.0] * 4


def test_tensors_outside_the_arguments_can_be_watched() -> None:
    graphs = GraphSet(FakeRecorder())
    held = {"cache": torch.zeros(2)}
    wrapper = CUDAGraphWrapper(
        lambda x: x + held["cache"].sum(), graphs, name="model", mode=FULL, watched=lambda _: held
    )
    x = torch.ones(4)
    with graphs.window(), context(FULL):
        wrapper(x)
    held["cache"] = torch.zeros(2)
    with context(FULL), pytest.raises(MovedTensor, match="captured with cache of address"):
        wrapper(x)


def test_a_failed_capture_leaves_nothing() -> None:
    def fails(inputs: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    recorder = FakeRecorder()
    graphs = GraphSet(recorder)
    wrapper = CUDAGraphWrapper(fails, graphs, name="piece", mode=PIECEWISE)
    with graphs.window(), context(PIECEWISE), pytest.raises(torch.OutOfMemoryError):
        wrapper([torch.ones(4)])
    assert (recorder.begun, recorder.ended, recorder.abandoned) == (1, 0, 1)
    assert graphs.count(BatchDescriptor(PIECEWISE, 4)) == 0


@pytest.mark.parametrize("kind", [CUDAGraphWrapper, BreakableGraphWrapper])
def test_a_graph_that_cannot_be_ended_is_abandoned_and_can_be_captured_again(
    kind: type[CUDAGraphWrapper],
) -> None:
    recorder = FakeRecorder(fail_end_at=1)
    graphs = GraphSet(recorder)
    wrapper = kind(lambda x: x * 2, graphs, name="piece", mode=PIECEWISE)
    x = torch.ones(4)
    with graphs.window(), context(PIECEWISE):
        with pytest.raises(RuntimeError, match="cannot be instantiated"):
            wrapper(x)
        assert recorder.abandoned == 1
        assert graphs.count(BatchDescriptor(PIECEWISE, 4)) == 0
        assert wrapper(x).tolist() == [2.0] * 4
    assert graphs.count(BatchDescriptor(PIECEWISE, 4)) == 1


def test_graphs_are_dropped_by_size_or_all_together() -> None:
    wrapper, _, graphs = wrapped()
    kept = {size: torch.ones(size) for size in (2, 4, 8)}
    with graphs.window():
        for size, x in kept.items():
            with context(PIECEWISE, size):
                wrapper([x, x])

    def counts() -> list[int]:
        return [graphs.count(BatchDescriptor(PIECEWISE, size)) for size in kept]

    graphs.drop(BatchDescriptor(PIECEWISE, 4))
    assert counts() == [1, 0, 1]
    graphs.drop()
    assert counts() == [0, 0, 0]
    with graphs.window(), context(PIECEWISE, 4):
        wrapper([kept[4], kept[4]])
    assert counts() == [0, 1, 0]


def test_attributes_and_the_innermost_callable_are_reached_through_wrappers() -> None:
    wrapper, runnable, graphs = wrapped()
    outer = CUDAGraphWrapper(wrapper, graphs, name="model", mode=FULL)
    assert outer.label == "inside"
    assert outer.unwrap() is runnable
    with pytest.raises(AttributeError):
        outer.nothing  # noqa: B018


def test_garbage_is_not_collected_inside_the_window() -> None:
    _, _, graphs = wrapped()
    with graphs.window():
        assert not gc.isenabled()
    assert gc.isenabled()


@dataclass(eq=False)
class Scaling:
    """What a call on the host looks at."""

    factor: float


@breaks_graphs
def scale(source: torch.Tensor, output: torch.Tensor, scaling: Scaling) -> None:
    output.copy_(source * scaling.factor)


def model(scaling: Scaling) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + 1
            output = torch.empty_like(x)
            scale(x, output, scaling)
            x = output - 1
        return x

    return forward


def test_a_breakable_graph_calls_again_what_is_between_its_segments() -> None:
    scaling = Scaling(2.0)
    recorder = FakeRecorder()
    graphs = GraphSet(recorder)
    forward = Counted(model(scaling))
    wrapper = BreakableGraphWrapper(forward, graphs, name="model", mode=PIECEWISE)
    x = torch.ones(4)
    with graphs.window(), context(PIECEWISE):
        assert wrapper(x).tolist() == [7.0] * 4
    x.fill_(2)
    scaling.factor = 3.0
    with context(PIECEWISE):
        got = wrapper(x)
    assert torch.equal(got, model(scaling)(x))
    assert forward.calls == 1
    assert graphs.count(BatchDescriptor(PIECEWISE, 4)) == recorder.replays == 3


def test_outside_a_capture_and_in_a_full_one_a_break_is_a_plain_call() -> None:
    recorder = FakeRecorder()
    graphs = GraphSet(recorder)
    pieces = BreakableGraphWrapper(model(Scaling(2.0)), graphs, name="model", mode=PIECEWISE)
    wrapper = CUDAGraphWrapper(pieces, graphs, name="model", mode=FULL)
    x = torch.ones(4)
    assert wrapper(x).tolist() == [7.0] * 4
    with graphs.window(), context(FULL):
        wrapper(x)
    assert recorder.begun == 1


def test_a_break_inside_a_break_is_part_of_it() -> None:
    outer = breaks_graphs(lambda source, output: scale(source, output, Scaling(2.0)))
    recorder = FakeRecorder()
    x, output = torch.ones(4), torch.empty(4)
    with BreakableCapture(recorder) as capture:
        outer(x + 1, output)
    assert (capture.graphs, capture.breaks) == (2, 1)
    x.fill_(4)
    capture.replay()
    assert output.tolist() == [10.0] * 4


def test_breakable_captures_do_not_nest() -> None:
    with BreakableCapture(FakeRecorder()), pytest.raises(NestedCapture), BreakableCapture(FakeRecorder()):
        pass


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_breakable_capture_that_fails_can_be_made_again(fail_at: int) -> None:
    graphs = GraphSet(FakeRecorder(fail_at))
    wrapper = BreakableGraphWrapper(model(Scaling(2.0)), graphs, name="model", mode=PIECEWISE)
    x = torch.ones(4)
    with graphs.window(), context(PIECEWISE):
        with pytest.raises(torch.OutOfMemoryError):
            wrapper(x)
        assert graphs.count(BatchDescriptor(PIECEWISE, 4)) == 0
        assert wrapper(x).tolist() == [7.0] * 4
    assert graphs.count(BatchDescriptor(PIECEWISE, 4)) == 3


@pytest.mark.parametrize(
    "error", [CaptureRefused("m", "FULL", 3), MovedTensor("m", "x", "a", "b"), NestedCapture()]
)
def test_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
