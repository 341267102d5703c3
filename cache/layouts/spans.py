"""The bytes of a pickle where they lie: in memory, or in a file of which only what is asked for is read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

# How much of a file is read at a time: between large parts that are skipped lie a few hundred bytes.
CHUNK = 1 << 12
# No opcode that is taken from the window without asking is longer, so that none lies across its end.
_MARGIN = 512
_STEP = 1 << 16


class OpenFile:
    """An open file that keeps what was `read` from it: pairs of a place and the bytes from there on."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.reads: list[tuple[int, bytes]] = []

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where the file has become shorter."""
        found = os.pread(self.descriptor, size, start)
        while len(found) < size:
            more = os.pread(self.descriptor, size - len(found), start + len(found))
            if not more:
                raise ValueError("not enough data")
            found += more
        self.reads.append((start, found))
        return found

    def holds(self, reads: Iterable[tuple[int, bytes]]) -> bool:
        """Return whether the same would be read from it; no more is read than up to the first difference."""
        # One place for all: memory that is new costs more than the reading.
        place = bytearray(_STEP)
        with memoryview(place) as room:
            for start, data in reads:
                for at in range(0, len(data), _STEP):
                    size = min(_STEP, len(data) - at)
                    if os.preadv(self.descriptor, [room[:size]], start + at) != size:
                        return False
                    if not place.startswith(memoryview(data)[at : at + size]):
                        return False
        return True


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of an open file, to be read while that is open: `size` bytes from `start` on."""

    file: OpenFile
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def part(self, at: int, size: int) -> Span:
        return Span(self.file, self.start + at, size)

    def read(self) -> bytes:
        """Return all of it; ValueError where the file has become shorter."""
        return self.file.read(self.start, self.size)


class Window:
    """What of a source lies in memory, `data` from the byte `base` on: all of it where that is bytes.

    From the place `edge` in it on it is to be moved before an opcode is read. It can be read from as a
    file, for what reads the rarer opcodes; `at` is where.
    """

    def __init__(self, source: bytes | Span) -> None:
        self.size = len(source)
        self.base = self.at = 0
        self.span = source if isinstance(source, Span) else None
        self.data = source if isinstance(source, bytes) else b""
        self.edge = sys.maxsize if self.span is None else 0

    def move(self, base: int) -> None:
        """Let it begin at `base`, at the end or beyond it with nothing."""
        self.base = base
        self.data = self._between(base, base + CHUNK)
        # What is there up to the end is all there is, and a byte beyond it an IndexError.
        whole = base + len(self.data) >= self.size
        self.edge = sys.maxsize if whole else max(len(self.data) - _MARGIN, 1)

    def slice(self, at: int, size: int) -> bytes:
        """Return `size` bytes from a place in `data` on, read on where it ends; ValueError beyond the end."""
        place = self._place(at, size)
        part = self.data[at : at + size]
        return part if len(part) == size else self._between(place, place + size)

    def later(self, at: int, size: int) -> Span:
        """Return what `slice` would as a stretch of the file that is not read yet."""
        assert self.span is not None
        return self.span.part(self._place(at, size), size)

    def read(self, size: int) -> bytes:
        found = self.slice(self.at, min(size, max(self.size - self.base - self.at, 0)))
        self.at += len(found)
        return found

    def readline(self) -> bytes:
        size = CHUNK
        while True:
            found = self.slice(self.at, min(size, max(self.size - self.base - self.at, 0)))
            end = found.find(b"\n") + 1
            if end or len(found) < size:
                self.at += end or len(found)
                return found[:end] if end else found
            size *= 2

    def _place(self, at: int, size: int) -> int:
        if self.base + at + size > self.size:
            raise ValueError("not enough data")
        return self.base + at

    def _between(self, start: int, end: int) -> bytes:
        end = min(end, self.size)
        return self.span.part(start, end - start).read() if self.span and start < end else b""


def joined(reads: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the same reads with those that touch as one, by their places."""
    found: list[tuple[int, bytearray]] = []
    for start, data in sorted(reads):
        at = start - found[-1][0] if found else -1
        if found and at <= len(found[-1][1]):
            found[-1][1].extend(data[len(found[-1][1]) - at :])
        else:
            found.append((start, bytearray(data)))
    return [(start, bytes(data)) for start, data in found]
