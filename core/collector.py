"""Python's cyclic garbage collector, kept out of the way of what makes objects that stay.

Importing torch makes about a million objects, none of them garbage, and the collector walks through
all of them again and again while they grow: up to a fifth of a start that compiles nothing, and of the
trace of a model with many layers.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Runs its body without the collector; whoever had turned it off finds it off afterwards.

    What was made meanwhile counts as old then, so that it is not walked through right after.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Freezing and thawing moves everything into the oldest generation and walks through nothing.
        # What somebody else froze would thaw with it.
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        gc.enable()


# Of new objects, until the young are looked at; and how many such looks until the older ones are.
_RELAXED = (50_000, 20, 10)


@contextlib.contextmanager
def collector_relaxed() -> Iterator[None]:
    """Runs a body that makes millions of objects, most of which stay for as long as it lasts.

    What was there before is not looked at, and what is new seldom: what is garbage is still found.
    Afterwards all is as before.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] == 0:
        yield
        return
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    gc.set_threshold(*map(max, before, _RELAXED))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if ours:
            gc.unfreeze()
