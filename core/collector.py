"""Python's cyclic garbage collector, kept out of the way of what makes only objects that stay.

Importing torch makes about a million objects, none of them garbage, and the collector walks through
all of them again and again while they grow: up to a fifth of a start that compiles nothing.
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
