"""Removing entries of a foreign tree, which only happens when somebody asks for it by name or rule.

Each folder goes by one rename beside itself and is deleted then, so that no start sees half of it; of an
entry's folders all go or none. What changed since the plan was made, or where a compile holds a lock, stays
and is told.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphkiln.cache.inspect.catalogue import Row
from graphkiln.cache.inspect.removal import Removed
from graphkiln.cache.layouts.files import is_folder, walk
from graphkiln.cache.layouts.found import ForeignRow
from graphkiln.cache.store.files import flush_folder
from graphkiln.cache.store.sweep import remove_tree

_OURS = ".graphkiln-removed-"
_LEFT = re.compile(rf"{re.escape(_OURS)}.+-[0-9a-f]{{8}}")

_log = logging.getLogger(__name__)


def remove_foreign(rows: Iterable[Row]) -> Removed:
    """Remove entries; what cannot be removed is told with the reason, never an error."""
    moved: list[str] = []
    skipped: list[tuple[str, str]] = []
    left: list[tuple[str, str, str]] = []
    size = files = 0
    for row in rows:
        assert isinstance(row, ForeignRow)
        why = _in_the_way(row)
        if why:
            skipped.append((row.id, why))
            continue
        try:
            gone = _renamed(row.folders)
        except OSError as error:
            skipped.append((row.id, (error.strerror or str(error)).lower()))
            continue
        kept = [(row.id, str(folder), why) for folder in gone if (why := _deleted(folder))]
        left += kept
        if not kept:
            moved.append(row.id)
            size, files = size + row.size, files + row.files
    return Removed(tuple(moved), tuple(skipped), size, files, 0, tuple(left))


def places_of(rows: Iterable[Row]) -> tuple[Path, ...]:
    """Return the folders that hold the entries' folders."""
    found = (folder.parent for row in rows if isinstance(row, ForeignRow) for folder in row.folders)
    return tuple(sorted(set(found)))


def sweep(places: Iterable[Path]) -> None:
    """Delete what a removal that was interrupted left; only names that a removal gives."""
    for place in places:
        try:
            names = [name for name in os.listdir(place) if _LEFT.fullmatch(name)]
        except OSError:
            continue
        for name in names:
            remove_tree(place / name)


def _in_the_way(row: ForeignRow) -> str:
    """Return why an entry stays, "" where it may go."""
    if not row.folders:
        return "it shares its files with others"
    if row.unread:
        return f"{row.unread} cannot be read"
    for folder in row.folders:
        then = row.seen.get(folder)
        if then is not None and walk(folder) != then:
            return "it changed since the plan was made"
        closed = _closed(folder)
        if closed is not None:
            return f"{closed} cannot be emptied: this user may not read and write in it"
        held = next(_held_locks(folder), None)
        if held is not None:
            return f"a process holds {held.relative_to(folder)}: something is being compiled"
    return ""


def _closed(folder: Path) -> Path | None:
    """Return the first folder, `folder` or one below it, in which this user cannot delete anything."""
    for place, _, _ in os.walk(folder):
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            return Path(place)
    return None


def _deleted(folder: Path) -> str:
    """Delete a folder and return "", or why something of it is left."""
    try:
        if is_folder(folder):
            shutil.rmtree(folder)
        else:
            folder.unlink()
    except OSError as error:
        return (error.strerror or str(error)).lower() if os.path.lexists(folder) else ""
    return ""


def _held_locks(folder: Path) -> Iterator[Path]:
    """Yield the lock files of Inductor's that a living process holds; a file alone means nothing."""
    for lock in sorted(folder.rglob("*.lock")):
        try:
            descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                yield lock
        finally:
            os.close(descriptor)


def _renamed(folders: Iterable[Path]) -> list[Path]:
    """Return where an entry's folders lie after their renames; `OSError` where one fails: then none moves."""
    moved: list[tuple[Path, Path]] = []
    try:
        for folder in folders:
            gone = folder.with_name(f"{_OURS}{folder.name[:10]}-{secrets.token_hex(4)}")
            os.rename(folder, gone)
            moved.append((folder, gone))
            flush_folder(gone.parent)
    except OSError:
        # Under its new name a folder is swept away by the next removal.
        for folder, gone in reversed(moved):
            _put_back(gone, folder)
        raise
    return [gone for _, gone in moved]


def _put_back(gone: Path, folder: Path) -> None:
    try:
        os.rename(gone, folder)
    except OSError as error:
        _log.warning("could not move %s back to %s: %s", gone, folder, error)
