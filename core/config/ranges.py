"""Compile ranges: which token counts share one compiled form of a piece, and which have one of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from graphkiln.core.config.fields import integer, items
from graphkiln.core.config.trail import Trail
from graphkiln.core.errors import OutOfRanges

CAPTURE_SIZES_WORD = "cudagraph_capture_sizes"
# The bound of an encoder's last range: its inputs are not bounded by the scheduler's token limit.
ENCODER_END = 2**31 - 1


@dataclass(frozen=True, order=True)
class CompileRange:
    """The token counts from `start` to `end`, both included."""

    start: int
    end: int

    def __contains__(self, tokens: int) -> bool:
        return self.start <= tokens <= self.end

    def __str__(self) -> str:
        return f"({self.start}, {self.end})"

    @property
    def single(self) -> bool:
        """Whether it is one token count."""
        return self.start == self.end


@dataclass(frozen=True)
class CompileRanges:
    """Contiguous ranges from 1 on, and `sizes` that are compiled by themselves, ascending, each once."""

    ranges: tuple[CompileRange, ...]
    sizes: tuple[int, ...] = ()

    @property
    def single_sizes(self) -> tuple[int, ...]:
        """The sizes that are not already a range of one."""
        return tuple(size for size in self.sizes if CompileRange(size, size) not in self.ranges)

    @property
    def endpoints(self) -> tuple[int, ...]:
        """The last token count of each range."""
        return tuple(found.end for found in self.ranges)

    @property
    def in_compile_order(self) -> tuple[CompileRange, ...]:
        """Single sizes, then ranges: what is compiled first is what decode waits for."""
        return (*(CompileRange(size, size) for size in self.single_sizes), *self.ranges)

    def find(self, tokens: int) -> CompileRange:
        """Returns what serves a call of `tokens`: an exact size before a range. Raises OutOfRanges."""
        exact = CompileRange(tokens, tokens)
        if tokens in self.sizes:
            return exact
        for found in self.ranges:
            if tokens in found:
                return found
        raise OutOfRanges(tokens, ", ".join(map(str, self.in_compile_order)))

    def for_encoder(self) -> CompileRanges:
        """Returns the same with an open end, for a part whose calls the scheduler does not bound."""
        return replace(self, ranges=(*self.ranges[:-1], replace(self.ranges[-1], end=ENCODER_END)))


def checked_endpoints(value: object) -> tuple[int, ...]:
    """Returns a list of endpoints. Raises ValueError for one below 1."""
    name = "compile_ranges_endpoints"
    return tuple(integer(name, endpoint, least=1) for endpoint in items(name, value))


def checked_sizes(value: object) -> tuple[int | str, ...]:
    """Returns a list of sizes and the one word. Raises ValueError for another word or a size below 1."""
    found = items("compile_sizes", value)
    for size in found:
        if isinstance(size, str) and size != CAPTURE_SIZES_WORD:
            raise ValueError(f"compile_sizes: {size!r} is neither a size nor {CAPTURE_SIZES_WORD!r}")
        if not isinstance(size, str):
            integer("compile_sizes", size, least=1)
    return found


def compile_ranges(
    endpoints: Sequence[int],
    sizes: Sequence[int | str],
    largest: int,
    captured: Sequence[int],
    limits: Iterable[int],
    trail: Trail,
) -> CompileRanges:
    """Returns the ranges up to `largest` tokens, and the sizes with the word put for `captured`.

    `limits` are token counts above which a pass does not apply: the piece differs there, so that a
    range ends with each. An endpoint that splits nothing is dropped, which is said.
    """
    kept = tuple(end for end in endpoints if 1 < end < largest)
    reason = f"only an endpoint between 1 and {largest} splits anything"
    trail.decide("compile_ranges_endpoints", tuple(endpoints), kept, reason)
    ends = sorted({*kept, largest, *(limit for limit in limits if 0 < limit < largest)})
    starts = [1, *(end + 1 for end in ends[:-1])]
    ranges = tuple(CompileRange(start, end) for start, end in zip(starts, ends, strict=True))
    return CompileRanges(ranges, _reached(_expanded(sizes, captured, trail), largest, trail))


def _reached(sizes: tuple[int, ...], largest: int, trail: Trail) -> tuple[int, ...]:
    kept = tuple(size for size in sizes if size <= largest)
    trail.decide("compile_sizes", sizes, kept, f"no step is larger (max_num_batched_tokens {largest})")
    return kept


def _expanded(sizes: Sequence[int | str], captured: Sequence[int], trail: Trail) -> tuple[int, ...]:
    found: set[int] = set()
    for size in sizes:
        found.update(captured if isinstance(size, str) else (size,))
    result = tuple(sorted(found))
    if CAPTURE_SIZES_WORD in sizes:
        count = len(captured)
        reason = f"{CAPTURE_SIZES_WORD} stands for {count} sizes" if count else "no sizes are captured"
        trail.decide("compile_sizes", tuple(sizes), result, reason)
    return result
