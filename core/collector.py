"""Python's cyclic garbage collector, kept out of the way of what makes objects that stay.

Importing torch makes about a million objects, none of them garbage, and the collector walks through
all of them again and again while they grow: up to a fifth of a start that compiles nothing, and of the
trace of a model with many layers.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# Python 3.12 begins with 375 frozen objects of its own; a program that freezes has many thousands.
_OF_INTERPRETERS = 1000


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
        if not _is_frozen():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


# Of new objects, until the young are looked at; and how many such looks until the older ones are.
_RELAXED = (50_000, 20, 10)
_lock = threading.Lock()
# What puts back how the collector was, and for how many bodies it is otherwise now.
_undo: contextlib.ExitStack | None = None
_bodies = 0


@contextlib.contextmanager
def collector_relaxed() -> Iterator[None]:
    """Runs a body that makes millions of objects, most of which stay for as long as it lasts.

    What was there before is not looked at, and what is new seldom: what is garbage is still found.
    When the last of the bodies that run, in all threads, has ended, all is as before.
    """
    global _bodies, _undo
    with _lock:
        _bodies += 1
        if _undo is None:
            _undo = _relax()
    try:
        yield
    finally:
        with _lock:
            _bodies -= 1
            if _bodies == 0 and _undo is not None:
                _undo.close()
                _undo = None


def _relax() -> contextlib.ExitStack:
    """Has the collector look seldom, and returns what undoes it; a collector that is off stays off."""
    undo = contextlib.ExitStack()
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] == 0:
        return undo
    if not _is_frozen():
        gc.freeze()
        undo.callback(gc.unfreeze)
    undo.callback(gc.set_threshold, *before)
    gc.set_threshold(*map(max, before, _RELAXED))
    return undo


def _is_frozen() -> bool:
    """Whether somebody froze what there is: some interpreters begin with a few hundred frozen objects."""
    return gc.get_freeze_count() > _OF_INTERPRETERS
