"""Which graphs pay: where padding costs more than it saves, what never wins, which sizes to capture."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphkiln.core.graphs.capturer import StepTime, Way
from graphkiln.core.graphs.suggest import Suggestion, suggested
from graphkiln.core.graphs.traffic import assumed_traffic

# Replays of one graph repeat to a few tenths of a per cent: less than this is no difference.
NOISE = 0.01
GRAPH_WAYS = (Way.FULL, Way.PIECEWISE)


@dataclass(frozen=True)
class PaddingLoss:
    """Steps of `first` to `last` tokens are padded to `size`, and would be faster without a graph.

    `graph_ms` is the padded replay, `plain_ms` the step of `first` tokens as it is.
    """

    way: str
    size: int
    first: int
    last: int
    graph_ms: float
    plain_ms: float


@dataclass(frozen=True)
class NeverWins:
    """A captured size that is not worth its memory, and why."""

    way: str
    size: int
    reason: str


@dataclass(frozen=True)
class Verdicts:
    """What the measured times say about the capture sizes."""

    padding: tuple[PaddingLoss, ...] = ()
    never_win: tuple[NeverWins, ...] = ()
    suggestion: Suggestion | None = None


NO_VERDICTS = Verdicts()


class Curve:
    """Milliseconds by token count: straight lines between what was measured, level outside of it."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self.sizes = sorted(points)
        self._points = dict(points)

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def __call__(self, tokens: int) -> float:
        if tokens in self._points:
            return self._points[tokens]
        index = bisect.bisect_left(self.sizes, tokens)
        if index in (0, len(self.sizes)):
            return self._points[self.sizes[min(index, len(self.sizes) - 1)]]
        low, high = self.sizes[index - 1], self.sizes[index]
        share = (tokens - low) / (high - low)
        return self._points[low] * (1 - share) + self._points[high] * share


def judged(
    times: Sequence[StepTime],
    *,
    decode_length: int = 1,
    traffic: Mapping[int, float] | None = None,
    current: Iterable[int] = (),
) -> Verdicts:
    """Returns the verdicts on measured times; nothing is said where there is nothing to compare with.

    `traffic` says how often steps of so many tokens are served, `current` are the capture sizes in use.
    """
    curves = {way: Curve({one.num_tokens: one.ms for one in times if one.way is way}) for way in Way}
    plain = curves[Way.COMPILED] or curves[Way.EAGER]
    graphs = {way: curves[way] for way in GRAPH_WAYS if curves[way]}
    if not plain or not graphs:
        return NO_VERDICTS
    serving = _serving(graphs)
    return Verdicts(
        padding=tuple(loss for way, curve in graphs.items() for loss in _padding(way, curve, plain)),
        never_win=tuple(one for way, curve in graphs.items() for one in _never(way, curve, plain)),
        suggestion=suggested(
            serving,
            plain,
            serving.sizes,
            traffic or assumed_traffic(serving.sizes[-1]),
            multiple=decode_length,
            current=tuple(current),
            counted=traffic is not None,
        ),
    )


def _serving(graphs: Mapping[Way, Curve]) -> Curve:
    """Returns what a step of decode takes: the whole graph where there is one, else the pieces."""
    points: dict[int, float] = {}
    for way in reversed(GRAPH_WAYS):
        if way in graphs:
            points |= {size: graphs[way](size) for size in graphs[way].sizes}
    return Curve(points)


def _padding(way: Way, graph: Curve, plain: Curve) -> Iterable[PaddingLoss]:
    for below, size in pairwise([0, *graph.sizes]):
        worse = [tokens for tokens in range(below + 1, size + 1) if graph(size) > plain(tokens) * (1 + NOISE)]
        if worse:
            yield PaddingLoss(way.value, size, worse[0], worse[-1], graph(size), plain(worse[0]))


def _never(way: Way, graph: Curve, plain: Curve) -> Iterable[NeverWins]:
    for size, above in pairwise([*graph.sizes, 0]):
        ms = graph(size)
        if ms >= plain(size):
            yield NeverWins(way.value, size, f"a step of {size} tokens is no slower without a graph")
        elif above and ms >= graph(above) * (1 - NOISE):
            yield NeverWins(way.value, size, f"the graph of {above} tokens is as fast")
