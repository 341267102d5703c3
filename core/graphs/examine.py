"""The capture check: every planned graph is captured, replayed against eager, timed, and given back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capturer import Captured, Capturer, DeviceMemory, Replayed, StepTime, Way
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import OutOfGraphMemory
from graphkiln.core.graphs.memory import ModeEstimate, Shortage, affordable, estimated, probes_of, shortage
from graphkiln.core.graphs.plan import GraphPlan
from graphkiln.core.graphs.verdicts import NO_VERDICTS, Verdicts, judged
from graphkiln.core.phases import Phases
from graphkiln.core.report import Progress


@dataclass(frozen=True)
class CaptureSet:
    """The captures of a plan, all of them or, with a `failure`, none that may be used."""

    captured: tuple[Captured, ...]
    failure: OutOfGraphMemory | None = None


@dataclass(frozen=True)
class Examination:
    """What a capture check found.

    `fitting` are the sizes that the estimate gives room to before anything was captured. `leaked` are the
    bytes that this process holds more of afterwards, `kept` what the device has less of besides: room for
    as many graphs, which the driver makes the next ones in, code that it loaded, and what other processes
    took meanwhile. `seconds` of capture are those of the whole set.
    """

    before: DeviceMemory
    estimates: tuple[ModeEstimate, ...] = ()
    fitting: tuple[int, ...] = ()
    captured: tuple[Captured, ...] = ()
    replayed: tuple[Replayed, ...] = ()
    times: tuple[StepTime, ...] = ()
    verdicts: Verdicts = NO_VERDICTS
    shortage: Shortage | None = None
    leaked: int = 0
    kept: int = 0

    @property
    def seconds(self) -> float:
        """Returns the seconds that the captures took, their warm-ups included."""
        return sum(one.seconds for one in self.captured)

    @property
    def ok(self) -> bool:
        """Whether every graph was captured and equals eager."""
        return self.shortage is None and all(one.ok for one in self.replayed)


def capture_all(capturer: Capturer, graphs: Sequence[BatchDescriptor], progress: Progress) -> CaptureSet:
    """Captures graphs in the order given, which is a plan's. Without memory for one of them none is kept."""
    captured: list[Captured] = []
    for number, descriptor in enumerate(graphs):
        progress.pieces(number, len(graphs), "graphs")
        try:
            captured.append(capturer.capture(descriptor))
        except OutOfGraphMemory as failure:
            # A step that finds some of its graphs and misses others is slow in a way nobody looks for.
            capturer.release()
            return CaptureSet(tuple(captured), failure)
    progress.pieces(len(graphs), len(graphs), "graphs")
    return CaptureSet(tuple(captured))


def examine(
    capturer: Capturer,
    plan: GraphPlan,
    *,
    compiled: bool,
    phases: Phases,
    traffic: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Examination:
    """Returns what capturing, replaying and timing every graph of `plan` showed; the device is as before.

    `compiled` says whether there is compiled code to time beside eager.
    """
    found = Examination(before=capturer.memory())
    with _given_back(capturer):
        found = _examined(capturer, plan, found, compiled, phases, traffic, seed)
    after = capturer.memory()
    leaked = max(0, after.held - found.before.held)
    return replace(found, leaked=leaked, kept=max(0, found.before.free - after.free - leaked))


def _examined(
    capturer: Capturer,
    plan: GraphPlan,
    found: Examination,
    compiled: bool,
    phases: Phases,
    traffic: Mapping[int, float] | None,
    seed: int,
) -> Examination:
    progress = phases.progress
    with phases.phase("estimate"):
        probed = capture_all(capturer, probes_of(plan), progress)
        if probed.failure is not None:
            return replace(found, shortage=shortage(plan, probed.failure, probed.captured, ()))
        capturer.release()
    estimates = estimated(plan, probed.captured)
    fitting = affordable(plan, estimates, found.before.free)
    found = replace(found, estimates=estimates, fitting=fitting)
    with phases.phase("capture"):
        whole = capture_all(capturer, plan.descriptors, progress)
        if whole.failure is not None:
            lack = shortage(plan, whole.failure, whole.captured, probed.captured)
            return replace(found, captured=whole.captured, shortage=lack)
    with phases.phase("replay"):
        replayed = tuple(_replays(capturer, plan, progress, seed))
    with phases.phase("time"):
        times = tuple(_times(capturer, plan, compiled, progress))
    verdicts = judged(
        times,
        decode_length=max(plan.request.decode_lengths),
        traffic=traffic,
        current=plan.request.sizes,
    )
    return replace(found, captured=whole.captured, replayed=replayed, times=times, verdicts=verdicts)


@contextmanager
def _given_back(capturer: Capturer) -> Iterator[None]:
    """Releases what was captured, also where the check ends by an error or by ctrl-c."""
    try:
        yield
    finally:
        capturer.release()


def _replays(capturer: Capturer, plan: GraphPlan, progress: Progress, seed: int) -> Iterable[Replayed]:
    """Gives each graph's replay in shuffled order: none may lean on what the one captured before it left."""
    order = list(plan.descriptors)
    random.Random(seed).shuffle(order)
    for number, descriptor in enumerate(order):
        progress.pieces(number, len(order), "replays")
        yield capturer.replay(descriptor, seed + number)
    progress.pieces(len(order), len(order), "replays")


def _times(capturer: Capturer, plan: GraphPlan, compiled: bool, progress: Progress) -> Iterable[StepTime]:
    """Gives the time of every graph, and of the same token counts without one."""
    plain = [Way.EAGER, Way.COMPILED] if compiled else [Way.EAGER]
    counts = sorted({graph.num_tokens for graph in plan.descriptors})
    steps = [
        *((way, BatchDescriptor(CUDAGraphMode.NONE, count)) for count in counts for way in plain),
        *((Way(graph.mode.name), graph) for graph in plan.descriptors),
    ]
    for number, (way, descriptor) in enumerate(steps):
        progress.pieces(number, len(steps), "steps")
        yield capturer.time(way, descriptor)
    progress.pieces(len(steps), len(steps), "steps")
