"""Making a finished folder the entry of its key: one rename, whatever else happens at the same time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from graphkiln.cache.errors import EntryDamaged, KeyPrefixCollision
from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import flush_folder
from graphkiln.cache.store.halves import aot_folders, put_aot, renew_aot
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.manifest import rank_folder
from graphkiln.cache.store.oserrors import typed_os_errors
from graphkiln.cache.store.quarantine import move_aside
from graphkiln.cache.store.reading import Fault
from graphkiln.cache.store.root import CacheRoot

# Held for renames and for reading one entry whole, never for a compile.
PUBLISH_LOCK_S = 300.0
_REOPEN_WAITS_S = (0.01, 0.05, 0.2, 0.5)


def publish_lock_name(short: str) -> str:
    """Return the name of the lock under which entries of these ten digits are put, moved and replaced."""
    return f"publish-{short}"


def publish_folder(
    root: CacheRoot, staged: Path, key: str, ranks: Iterable[str], aot: Path | None = None
) -> Entry:
    """Return the entry of `key`: the staged folder moved into place, or what was there already.

    `aot` holds its staged AOT files, which are moved first: where the entry is, they are.
    A sound entry of the same key wins and gets those of our ranks that it lacks; a damaged one is
    set aside. `KeyPrefixCollision` where another key has the name.
    """
    short = key[:SHORT_DIGITS]
    target = root.cache / short
    with build_lock(root, publish_lock_name(short), PUBLISH_LOCK_S, "publishing"), typed_os_errors(root.path):
        if not os.path.lexists(target) or not _joined(root, target, staged, key, tuple(ranks)):
            if aot is not None:
                put_aot(root, aot, key)
            os.rename(staged, target)
            flush_folder(root.cache)
            return _reopened(target)
        entry = _reopened(target)
        for rank in ranks if entry.aot is not None else ():
            renew_aot(root, entry, rank)
        return entry


def _joined(root: CacheRoot, target: Path, staged: Path, key: str, ranks: tuple[str, ...]) -> bool:
    """Say whether the entry at `target` stays, with our ranks in it; otherwise it was moved away."""
    try:
        entry = Entry(target)
    except EntryDamaged as damage:
        _set_aside(root, target, key, [Fault.of(damage)])
        return False
    if entry.key != key:
        raise KeyPrefixCollision(key[:SHORT_DIGITS], key, entry.key)
    shared = entry.verify_shared()
    if shared:
        _set_aside(root, target, key, shared)
        return False

    there = entry.ranks()
    damaged = {rank: faults for rank in ranks if rank in there and (faults := _faults(entry, rank))}
    if damaged and set(there) <= set(ranks):
        _set_aside(root, target, key, [fault for faults in damaged.values() for fault in faults])
        return False
    for rank in ranks:
        if rank in damaged:
            # Other ranks' work is in this entry: only ours is replaced.
            _set_aside(root, target / rank_folder(rank), key, damaged[rank])
        if rank in damaged or rank not in there:
            _add_rank(root, entry, Entry(staged), rank)
    return True


def _add_rank(root: CacheRoot, entry: Entry, ours: Entry, rank: str) -> None:
    """Move a rank and the artifacts it uses from the staged entry into a published one, the rank last."""
    os.makedirs(entry.path / "artifacts", mode=0o700, exist_ok=True)
    for artifact in ours.manifest(rank).artifacts:
        place = entry.path / "artifacts" / artifact
        if os.path.lexists(place):
            try:
                entry.artifact_dir(artifact)
                continue
            except EntryDamaged as damage:
                _set_aside(root, place, entry.key, [Fault.of(damage)])
        # Two ranks of ours may use it; the first one moved it.
        os.rename(ours.path / "artifacts" / artifact, place)
    flush_folder(entry.path / "artifacts")
    os.rename(ours.path / rank_folder(rank), entry.path / rank_folder(rank))
    flush_folder(entry.path)


def _faults(entry: Entry, rank: str) -> list[Fault]:
    # What nothing lists is nothing that a load would read.
    return [fault for fault in entry.verify(rank) if fault.kind != "extra"]


def _set_aside(root: CacheRoot, path: Path, key: str, faults: list[Fault]) -> None:
    reason = {
        "why": "found damaged while publishing",
        "key": key,
        "faults": [asdict(fault) for fault in faults],
    }
    beside = aot_folders(root, key[:SHORT_DIGITS]) if path.parent == root.cache else []
    move_aside(root, path, key[:SHORT_DIGITS], reason, beside)


def _reopened(target: Path) -> Entry:
    """Return the entry just published; a network file system may need a moment to show it."""
    for wait in _REOPEN_WAITS_S:
        try:
            return Entry(target)
        except EntryDamaged as damage:
            if damage.fault not in ("missing", "unreadable"):
                raise
        time.sleep(wait)
    return Entry(target)
