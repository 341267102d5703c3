"""How much memory graphs take: estimated from a few of them, and what to do where it does not suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capturer import Captured
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import OutOfGraphMemory
from graphkiln.core.graphs.plan import GraphPlan

# A graph that finds all its tensors in the pool still has nodes and parameters of its own.
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class ModeEstimate:
    """What the graphs of one mode take: `first` bytes for the largest, `each` for every further one."""

    mode: CUDAGraphMode
    graphs: int
    first: int
    each: int

    @property
    def bytes(self) -> int:
        """Returns the bytes of all its graphs."""
        return self.of(self.graphs)

    def of(self, graphs: int) -> int:
        """Returns the bytes of so many graphs."""
        return self.first + (graphs - 1) * self.each if graphs else 0


@dataclass(frozen=True)
class Shortage:
    """A capture that ran out of memory at one graph, and what fits.

    `captured` graphs were there before it. `sizes` is the list to use: its graphs take no more than
    those took. `measured` is False where too little was captured to tell, and half the size is a guess.
    """

    mode: str
    num_tokens: int
    detail: str
    captured: int
    planned: int
    sizes: tuple[int, ...]
    measured: bool


def probes_of(plan: GraphPlan) -> tuple[BatchDescriptor, ...]:
    """Returns the graphs to estimate from: the two largest of each mode, in the order of capture."""
    return tuple(graph for mode in plan.modes for graph in plan.of(mode)[:2])


def estimated(plan: GraphPlan, captured: Sequence[Captured]) -> tuple[ModeEstimate, ...]:
    """Returns what each mode takes, from captures of its largest graphs in the order of the plan."""
    return tuple(_estimate(plan, mode, captured) for mode in plan.modes)


def _estimate(plan: GraphPlan, mode: CUDAGraphMode, captured: Sequence[Captured]) -> ModeEstimate:
    taken = [one.bytes for one in captured if one.descriptor.mode is mode]
    first = max(taken[:1], default=_LEAST_BYTES)
    return ModeEstimate(mode, len(plan.of(mode)), first, max([_LEAST_BYTES, *taken[1:]]))


def affordable(plan: GraphPlan, estimates: Sequence[ModeEstimate], budget: int) -> tuple[int, ...]:
    """Returns the capture sizes that fit into `budget` bytes: the largest are given up first.

    Small batches gain most from a graph. The largest graph that is left counts as much as the one that
    was measured, which is more than it takes.
    """
    sizes = sorted(plan.request.sizes)
    while sizes and _needed(plan.with_sizes(sizes), estimates) > budget:
        sizes.pop()
    return tuple(sizes)


def _needed(plan: GraphPlan, estimates: Sequence[ModeEstimate]) -> int:
    return sum(estimate.of(len(plan.of(estimate.mode))) for estimate in estimates)


def shortage(
    plan: GraphPlan, failure: OutOfGraphMemory, captured: Sequence[Captured], probed: Sequence[Captured]
) -> Shortage:
    """Returns what a capture that failed tells: what fits is what had fit.

    `probed` are captures of the same plan made before, for the modes that were not reached.
    """
    reached = {one.descriptor.mode for one in captured}
    known = [*captured, *(one for one in probed if one.descriptor.mode not in reached)]
    fitting = affordable(plan, estimated(plan, known), sum(one.bytes for one in captured)) if captured else ()
    half = tuple(size for size in sorted(set(plan.request.sizes)) if size <= failure.num_tokens // 2)
    return Shortage(
        mode=failure.mode,
        num_tokens=failure.num_tokens,
        detail=failure.detail,
        captured=len(captured),
        planned=len(plan.descriptors),
        sizes=fitting or half,
        measured=bool(fitting),
    )
