"""Which capture sizes serve a traffic best: the list with the least time of all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

# A size is listed where it saves this share of the time of all steps: each costs memory and a capture.
_WORTH = 0.001


@dataclass(frozen=True)
class Suggestion:
    """A list for `cudagraph_capture_sizes` and what it is worth.

    `ratio` is the time of all steps with it over that with the sizes in use, both as measured or, for
    `interpolated` sizes, from their neighbours. `counted` says whether the weights were counted or
    assumed; `larger` is the share of steps that no size holds, which run without a graph.
    """

    sizes: tuple[int, ...]
    ratio: float
    interpolated: tuple[int, ...]
    counted: bool
    larger: float


def suggested(
    graph: Callable[[int], float],
    plain: Callable[[int], float],
    measured: Sequence[int],
    traffic: Mapping[int, float],
    *,
    multiple: int = 1,
    current: Sequence[int] = (),
    counted: bool = False,
) -> Suggestion:
    """Returns the best list of sizes up to the largest of `measured`.

    `graph` and `plain` give milliseconds by token count. What is measured and what is served, rounded up
    to `multiple`, may be in the list; a step runs in the next size, as the dispatch rule has it, and
    without a graph above the last.
    """
    largest = max(measured)
    served = [(tokens, weight) for tokens, weight in sorted(traffic.items()) if tokens <= largest and weight]
    rounded = {-(-tokens // multiple) * multiple for tokens, _ in served} if counted else set()
    candidates = sorted({*measured, *(size for size in rounded if size <= largest)})
    now = _time(current or measured, graph, plain, served)
    sizes = _best(candidates, graph, plain, served, now * _WORTH)
    best = _time(sizes, graph, plain, served)
    return Suggestion(
        sizes=sizes,
        ratio=best / now if now else 1.0,
        interpolated=tuple(size for size in sizes if size not in measured),
        counted=counted,
        larger=1 - sum(weight for _, weight in served) / sum(traffic.values()),
    )


def _time(
    sizes: Iterable[int],
    graph: Callable[[int], float],
    plain: Callable[[int], float],
    served: Sequence[tuple[int, float]],
) -> float:
    """Returns the weighted milliseconds of all steps with a list of sizes."""
    ascending = sorted(sizes)
    total = 0.0
    for tokens, weight in served:
        size = next((size for size in ascending if size >= tokens), None)
        total += weight * (plain(tokens) if size is None else graph(size))
    return total


def _best(
    candidates: Sequence[int],
    graph: Callable[[int], float],
    plain: Callable[[int], float],
    served: Sequence[tuple[int, float]],
    price: float,
) -> tuple[int, ...]:
    """Returns the list with the least time, each size at a price: the cheapest way through the candidates."""
    largest = candidates[-1]
    weights, plains = [0.0] * (largest + 1), [0.0] * (largest + 1)
    for tokens, weight in served:
        weights[tokens] += weight
        plains[tokens] += weight * plain(tokens)
    weight_to, plain_to = list(accumulate(weights)), list(accumulate(plains))
    costs: dict[int, float] = {0: 0.0}
    before: dict[int, int] = {}
    for size in candidates:
        below = min(costs, key=lambda low: costs[low] + graph(size) * (weight_to[size] - weight_to[low]))
        costs[size] = costs[below] + graph(size) * (weight_to[size] - weight_to[below]) + price
        before[size] = below
    end = min(costs, key=lambda size: costs[size] + plain_to[-1] - plain_to[size])
    found: list[int] = []
    while end:
        found.append(end)
        end = before[end]
    return tuple(reversed(found))
