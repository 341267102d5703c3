"""The token counts for which CUDA graphs are captured.

A step is padded up to the next capture size, so the list is dense where padding is dear (small
batches) and sparse where it is not. Uniform decode has sizes of its own: n requests of q tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphkiln.core.config.facts import Facts
from graphkiln.core.config.fields import integer, items
from graphkiln.core.config.modes import PerformanceMode
from graphkiln.core.config.trail import Trail

_FIELD, _MAX_FIELD = "cudagraph_capture_sizes", "max_cudagraph_capture_size"


def checked_sizes(value: object) -> tuple[int, ...]:
    """Returns a list of sizes as the user gave it. Raises ValueError for a size below 1."""
    return tuple(integer(_FIELD, size, least=1) for size in items(_FIELD, value))


def capture_sizes(
    asked: Sequence[int] | None,
    asked_max: int | None,
    performance: PerformanceMode,
    facts: Facts,
    trail: Trail,
) -> tuple[int, ...]:
    """Returns the sizes to capture, ascending. Raises ValueError for an empty list or a maximum that is off.

    The user's list wins, without what no step can reach; else the list is generated up to his
    maximum, or up to twice the tokens of the widest decode step.
    """
    if asked is not None:
        return _from_list(asked, asked_max, facts, trail)
    if asked_max is None:
        ceiling = _default_ceiling(facts)
        sizes = {*_generated(ceiling, performance, facts), *_uniform_decode_sizes(ceiling, facts)}
        return tuple(sorted(sizes))
    if asked_max < 1:
        raise ValueError(f"{_MAX_FIELD}: {asked_max} is below 1; -cc.cudagraph_mode=NONE captures nothing")
    limit = facts.max_num_batched_tokens
    found = tuple(sorted(set(_generated(min(asked_max, limit), performance, facts))))
    reason = f"no step is larger (max_num_batched_tokens {limit})"
    if found[-1] != limit:
        reason = "the largest size of the generated list"
    trail.decide(_MAX_FIELD, asked_max, found[-1], reason)
    return found


def _from_list(asked: Sequence[int], asked_max: int | None, facts: Facts, trail: Trail) -> tuple[int, ...]:
    if not asked:
        raise ValueError(f"{_FIELD}: the list is empty; -cc.cudagraph_mode=NONE captures nothing")
    limit = facts.max_num_batched_tokens
    found = tuple(sorted({size for size in asked if size <= limit}))
    largest = found[-1] if found else 0
    if asked_max is not None and asked_max != largest:
        raise ValueError(
            f"{_MAX_FIELD}: {asked_max} is not the largest of {_FIELD} up to max_num_batched_tokens, "
            f"which is {largest}; give one of the two"
        )
    reason = "in ascending order, each size once"
    if max(asked) > limit:
        reason = f"sizes above max_num_batched_tokens {limit} are never reached"
    if not found:
        reason = f"every size is above max_num_batched_tokens {limit}: no graph is captured"
    trail.decide(_FIELD, tuple(asked), found, reason)
    return found


def _default_ceiling(facts: Facts) -> int:
    widest = facts.max_num_seqs * facts.decode_length * 2
    return min(widest, _most(facts), facts.max_num_batched_tokens)


def _most(facts: Facts) -> int:
    """Returns the largest size by default: large graphs pay on the newest GPUs only."""
    return 1024 if facts.blackwell else 512


def _generated(ceiling: int, performance: PerformanceMode, facts: Facts) -> Iterator[int]:
    if performance is PerformanceMode.INTERACTIVITY:
        yield from range(1, min(32, ceiling) + 1)
    yield from _steps(ceiling)
    if facts.max_num_batched_tokens <= ceiling:
        yield facts.max_num_batched_tokens


def _steps(ceiling: int) -> Iterator[int]:
    """Gives 1, 2, 4, then steps of 8, and from 256 on steps of 16."""
    for size in (1, 2, 4, *range(8, 256, 8), *range(256, ceiling + 1, 16)):
        if size <= ceiling:
            yield size


def _uniform_decode_sizes(ceiling: int, facts: Facts) -> Iterator[int]:
    """Gives the sizes of full steps of decode, which are met exactly instead of being padded."""
    if facts.decode_length == 1:
        if facts.max_num_seqs <= ceiling:
            yield facts.max_num_seqs
        return
    for length, requests in decode_widths(facts).items():
        limit = min(requests, _most(facts))
        for count in (*_steps(limit), limit):
            if count * length <= ceiling:
                yield count * length


def decode_widths(facts: Facts) -> dict[int, int]:
    """Returns the tokens of one request in a decode step, each with the widest batch that drafts so many.

    A row of the schedule holds until the next begins; more drafts than the model makes are no drafts.
    """
    if not facts.draft_schedule:
        return {facts.decode_length: facts.max_num_seqs}
    rows = facts.draft_schedule
    begins = [first for first, _, _ in rows]
    if begins[0] != 1 or begins != sorted(set(begins)) or any(last < first for first, last, _ in rows):
        raise ValueError("draft_schedule: its rows must begin at batch size 1 and ascend")
    ends = [*(begin - 1 for begin in begins[1:]), facts.max_num_seqs]
    widths: dict[int, int] = {}
    for begin, end, (_, _, drafts) in zip(begins, ends, rows, strict=True):
        length = 1 + min(drafts, facts.num_speculative_tokens)
        widest = min(end, facts.max_num_seqs)
        if widest >= begin:
            widths[length] = max(widest, widths.get(length, 0))
    return widths
