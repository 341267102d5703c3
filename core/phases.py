"""Where the seconds of a start go: named phases that add up to its wall time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from graphkiln.core.report import Progress


class Phases:
    """A stopwatch that is always in one phase; what no phase claims is `other`."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._seconds: dict[str, float] = {}
        self._current = "other"
        self._quiet = False
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside as phase `name`; a phase inside another is taken out of the outer one."""
        outer = self._current
        self._switch(name)
        self.progress.phase(name)
        try:
            yield
        finally:
            self._switch(outer)

    def note(self, text: str) -> None:
        """Tells the user something that is not an error."""
        if not self._quiet:
            self.progress.note(text)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Tells no notes inside: they were told before."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def rows(self) -> tuple[tuple[str, float], ...]:
        """Returns (name, seconds) of every phase so far, in order of first entry."""
        self._switch(self._current)
        return tuple(
            (name, seconds) for name, seconds in self._seconds.items() if name != "other" or seconds > 5e-4
        )

    def _switch(self, name: str) -> None:
        now = time.perf_counter()
        self._seconds[self._current] = self._seconds.get(self._current, 0.0) + now - self._since
        self._current, self._since = name, now
