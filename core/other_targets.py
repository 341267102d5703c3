"""Entries that would be what a start looks for, had they been compiled for its target: named, not opened."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.store import Store
from graphkiln.core.plan import Plan
from graphkiln.core.target.apart import only_apart, sentence

# The values of an entry take milliseconds to read.
_MOST_READ = 12


def other_target(store: Store, plan: Plan) -> tuple[str, tuple[Difference, ...]]:
    """Returns a line about the nearest entry that is apart by its target alone, and how; "" without one.

    Of an entry only its header and its factors are read. Raises RootUnusable.
    """
    if plan.factors is None:
        return "", ()
    hashes, now = plan.factors.hashes, plan.factors.as_json()["compiler"]
    same = [
        entry
        for entry in store.entries()
        if isinstance(entry, Entry)
        and all(entry.header["hashes"][name] == hashes[name] for name in ("env", "config"))
    ]
    near: list[tuple[str, Mapping[str, Any], tuple[Difference, ...]]] = []
    for entry in same[:_MOST_READ]:
        # A damaged one is set aside by whoever looks for it, and not by this start.
        with contextlib.suppress(EntryDamaged):
            then = entry.factors().as_json()["compiler"]
            found = only_apart(then, now)
            near += [(entry.short, then, found)] if found else []
    if not near:
        return "", ()
    short, then, found = min(near, key=lambda one: len(one[2]))
    more = f" (and {len(near) - 1} for others)" if len(near) > 1 else ""
    return sentence(short, then, now) + more, found
