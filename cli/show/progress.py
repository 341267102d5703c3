"""Progress on stderr: a bar on a terminal, a line for each phase elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from graphkiln.cli.session import Session
from graphkiln.cli.show.terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from graphkiln.core.report import Progress


@contextmanager
def progress_for(session: Session) -> Iterator[Progress | None]:
    """Gives the progress that fits the session and the stream; it is gone from a terminal afterwards."""
    if session.quiet:
        yield None
    elif not is_terminal(sys.stderr):
        yield Lines(session)
    else:
        with rich_progress() as rich:
            yield Bar(rich)


class Lines:
    """Says a line for each new phase and each note, and for each piece with -v."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._phase = ""

    def phase(self, name: str) -> None:
        if name != self._phase:
            self._session.talk(name)
        self._phase = name

    def pieces(self, done: int, total: int, what: str = "pieces") -> None:
        if self._session.verbosity or (done == total and total):
            self._session.talk(f"{done}/{total} {what}")

    def note(self, text: str) -> None:
        self._session.talk(text)


class Bar:
    """Draws the current phase with its seconds, and a bar that moves with each piece."""

    def __init__(self, rich: RichProgress) -> None:
        self._rich = rich
        self._task = rich.add_task("", total=None, pieces="")

    def phase(self, name: str) -> None:
        # a total, once set, cannot be taken back from a task
        self._rich.remove_task(self._task)
        self._task = self._rich.add_task(name, total=None, pieces="")

    def pieces(self, done: int, total: int, what: str = "pieces") -> None:
        self._rich.update(self._task, completed=done, total=total, pieces=f"{done}/{total} {what}")

    def note(self, text: str) -> None:
        self._rich.console.print(text, highlight=False, markup=False)


def rich_progress() -> RichProgress:
    # rich is slow to import, and only a terminal needs it
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[pieces]}"),
        console=Console(file=sys.stderr),
        transient=True,
    )
