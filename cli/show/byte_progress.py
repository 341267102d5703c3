"""How far a long read has come, in bytes: one line that moves on a terminal, none in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphkiln.cli.session import Session
from graphkiln.cli.show.numbers import bytes_text
from graphkiln.cli.show.terminal import is_terminal

_EVERY_S = {True: 0.1, False: 10.0}


@contextmanager
def byte_progress(session: Session, doing: str) -> Iterator[Callable[[int, int], None] | None]:
    """Gives what is told bytes done and bytes in all; a pipe hears of it only when it takes long."""
    if session.quiet:
        yield None
        return
    drawn = is_terminal(sys.stderr)
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _EVERY_S[drawn]:
            return
        last = now
        text = f"{doing} {bytes_text(done)} of {bytes_text(total)}"
        sys.stderr.write(f"\r\x1b[K{text}" if drawn else f"{text}\n")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
