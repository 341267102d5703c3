"""The first call of what came from an entry, marked in the cache while it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from graphkiln.cache.store.aot_header import AotHeader
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.trial import on_trial, prove


def tried(
    root: CacheRoot, entry: Entry | AotHeader, serve: Sequence[Callable[..., Any]]
) -> list[Callable[..., Any]]:
    """Returns `serve`, the first call of each on trial until a process has made them all.

    Nothing remembers that of an AOT file without its entry, whose header `entry` is then: each process
    tries it.
    """
    if isinstance(entry, Entry) and entry.state.proved:
        return [*serve]
    waiting = set(range(len(serve)))

    def one(index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call, assigned=(), updated=())
        def called(*args: Any, **kwargs: Any) -> Any:
            if index not in waiting:
                return call(*args, **kwargs)
            with on_trial(root, entry):
                result = call(*args, **kwargs)
            waiting.discard(index)
            if not waiting and isinstance(entry, Entry):
                prove(root, entry)
            return result

        return called

    return [one(index, call) for index, call in enumerate(serve)]
