"""Carrying out a plan of removal: whole entries by one rename each into the trash, then the trash."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.errors import CacheError
from graphkiln.cache.inspect.catalogue import Row, scan
from graphkiln.cache.inspect.prune import Leftover, Plan
from graphkiln.cache.inspect.repair import SetAside, quarantined
from graphkiln.cache.inspect.sizes import file_sizes
from graphkiln.cache.store.layout import foreign_names
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.sweep import dead_drafts, remove_dead_drafts
from graphkiln.cache.store.trash import discard, discarded, empty_trash


@dataclass(frozen=True)
class Removed:
    """What was done: ids and folders moved away, those that were not and why, what is deleted already.

    `waiting` is the number of things in the trash whose grace period is not over; `left` is what was moved
    away and could not be deleted: id, where it lies, and why.
    """

    moved: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    deleted_size: int
    deleted_files: int
    waiting: int
    left: tuple[tuple[str, str, str], ...] = ()


def leftovers(root: CacheRoot) -> list[Leftover]:
    """Return what lies beside the entries and nobody needs: things set aside, dead drafts, lone AOT files."""
    # What was set aside with a file in it that may be anybody's stays.
    aside = [item.path for item in quarantined(root) if not _holds_foreign(item)]
    return [
        *(_leftover("quarantine", path) for path in aside),
        *(_leftover("staging", path) for path in dead_drafts(root)),
        *(_leftover("aot", path) for path in scan(Store(root)).lone),
    ]


def remove(store: Store, plan: Plan, grace_s: float) -> Removed:
    """Carry out a plan. What changed since it was made is skipped and told, never an error."""
    moved: list[str] = []
    skipped: list[tuple[str, str]] = []
    for item in plan.doomed:
        _remove_row(store, item.row, moved, skipped)
    for leftover in plan.leftovers:
        try:
            if leftover.kind == "aot" and not store.discard_lone(leftover.path):
                skipped.append((leftover.path.name, "its entry is there now"))
                continue
            if leftover.kind == "quarantine":
                discard(store.root, leftover.path)
            moved.append(f"{leftover.kind}/{leftover.path.name}")
        except CacheError as error:
            skipped.append((leftover.path.name, str(error)))
    if any(leftover.kind == "staging" for leftover in plan.leftovers):
        remove_dead_drafts(store.root)
    return _emptied(store.root, moved, skipped, grace_s)


def remove_rows(store: Store, rows: Sequence[Row], grace_s: float) -> Removed:
    """Remove the named entries, labelled ones too."""
    moved: list[str] = []
    skipped: list[tuple[str, str]] = []
    for row in rows:
        _remove_row(store, row, moved, skipped, spare_kept=False)
    return _emptied(store.root, moved, skipped, grace_s)


def free_bytes(root: CacheRoot) -> int:
    """Return what the disk of a cache has free for this user."""
    return free_on_disk(root.path)


def free_on_disk(folder: Path) -> int:
    """Return what the disk of a folder, which need not exist, has free for this user."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def _remove_row(
    store: Store, row: Row, moved: list[str], skipped: list[tuple[str, str]], spare_kept: bool = True
) -> None:
    assert row.entry is not None
    try:
        gone = store.discard(row.entry, spare_kept=spare_kept)
    except CacheError as error:
        skipped.append((row.id, str(error)))
        return
    if gone is None:
        skipped.append((row.id, "it was used, kept or replaced by somebody meanwhile"))
    else:
        moved.append(row.id)


def _emptied(root: CacheRoot, moved: list[str], skipped: list[tuple[str, str]], grace_s: float) -> Removed:
    size, files = empty_trash(root, grace_s)
    return Removed(tuple(moved), tuple(skipped), size, files, len(discarded(root)))


def _holds_foreign(item: SetAside) -> bool:
    if not item.is_entry:
        return "from" in item.reason
    lying = item.path / item.moved
    return os.path.islink(lying) or bool(foreign_names(file_sizes(lying)))


def _leftover(kind: str, path: Path) -> Leftover:
    sizes = file_sizes(path)
    return Leftover(kind, path, sum(sizes.values()), len(sizes))
