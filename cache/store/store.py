"""The store: finds entries, begins new ones, sets damaged ones aside, keeps the ledger of starts."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import AmbiguousEntry, CacheError, EntryDamaged, EntryNotFound
from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.store.aot import AotFile
from graphkiln.cache.store.draft import Draft
from graphkiln.cache.store.entries import SHORT, Entry
from graphkiln.cache.store.halves import aot_folders, find_aot, holds_artifacts, renew_aot
from graphkiln.cache.store.layout import could_be_entry
from graphkiln.cache.store.ledger import append_start, read_starts
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.manifest import HEADER_FILE
from graphkiln.cache.store.oserrors import typed_os_errors, unusable
from graphkiln.cache.store.publish import PUBLISH_LOCK_S, publish_lock_name
from graphkiln.cache.store.quarantine import move_aside
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.state import read_state
from graphkiln.cache.store.trash import discard

_HEX = re.compile(r"[0-9a-f]{1,64}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Broken:
    """A folder with an entry's name whose header is not sound."""

    path: Path
    error: EntryDamaged


class Store:
    """The entries of one cache. Reading creates nothing, writes nothing and takes no lock.

    `folder` is a cache folder given explicitly: entries lie in it by key as anywhere else, locks
    and the like in `<folder>/.graphkiln`, and nothing of the store touches `root` then.
    """

    def __init__(self, root: CacheRoot, folder: Path | None = None) -> None:
        self.root = root if folder is None else CacheRoot.of_folder(folder)

    def find(self, lookup: str) -> list[Entry]:
        """Return the entries with this lookup, newest first."""
        return [entry for entry in self._sound() if entry.lookup == lookup]

    def entries(self) -> list[Entry | Broken]:
        """Return every entry, newest first, and after them the broken ones."""
        found = [self._open(path) for path in self._folders()]
        broken = [entry for entry in found if isinstance(entry, Broken)]
        sound = [entry for entry in found if isinstance(entry, Entry)]
        return [*sorted(sound, key=lambda entry: (entry.created, entry.key), reverse=True), *broken]

    def resolve(self, ref: str) -> Entry:
        """Return the entry that `ref` names: a key, a unique prefix of one, a label, or a path.

        `EntryNotFound`, `AmbiguousEntry`, or `EntryDamaged` when it names a broken one.
        """
        path = Path(ref)
        if os.sep in ref or ref in (".", ".."):
            if not could_be_entry(path):
                raise EntryNotFound(ref)
            return Entry(Path(os.path.abspath(path)))
        is_hex = _HEX.fullmatch(ref) is not None
        # Entries lie by the beginning of their key: the others need not be opened for it.
        named = [path for path in self._folders() if is_hex and path.name.startswith(ref[:SHORT_DIGITS])]
        opened = [self._open(path) for path in named]
        matches = [entry for entry in opened if isinstance(entry, Entry) and entry.key.startswith(ref)]
        matches = matches or [entry for entry in self._sound() if entry.state.label == ref]
        if len(matches) > 1:
            raise AmbiguousEntry(ref, tuple(entry.key for entry in matches))
        if matches:
            return matches[0]
        for broken in opened:
            if isinstance(broken, Broken):
                raise broken.error
        if os.path.lexists(path / HEADER_FILE):
            return Entry(Path(os.path.abspath(path)))
        raise EntryNotFound(ref)

    def draft(self, key: str) -> Draft:
        """Return a new entry in the making, to be entered with `with`."""
        return Draft(self.root, key)

    def set_aside(
        self, entry: Entry | Broken, reason: Mapping[str, Any], only_if_damaged: bool = False
    ) -> Path | None:
        """Move an entry into quarantine with a reason; return its quarantine folder.

        None where that is not possible (a read-only root) or not needed any more: another process
        put a new entry in its place or, with `only_if_damaged`, a second look finds it sound.
        """
        if os.path.realpath(entry.path.parent) != os.path.realpath(self.root.cache):
            raise ValueError(f"not an entry of this cache: {entry.path}")
        short = entry.path.name
        try:
            with (
                build_lock(self.root, publish_lock_name(short), PUBLISH_LOCK_S, "setting an entry aside"),
                typed_os_errors(self.root.path),
            ):
                if not _still_there(entry, only_if_damaged):
                    return None
                return move_aside(self.root, entry.path, short, reason, aot_folders(self.root, short))
        except CacheError as error:
            _log.warning("entry %s could not be set aside: %s", short, error)
            return None

    def discard(self, entry: Entry | Broken, *, spare_kept: bool = True) -> Path | None:
        """Move an entry into the trash, to be deleted later; return where it lies now.

        None where another one took its place meanwhile or, with `spare_kept`, somebody pinned or
        labelled it. `RootUnusable` and `LockTimeout` where it cannot be moved.
        """
        if os.path.realpath(entry.path.parent) != os.path.realpath(self.root.cache):
            raise ValueError(f"not an entry of this cache: {entry.path}")
        short = entry.path.name
        with build_lock(self.root, publish_lock_name(short), PUBLISH_LOCK_S, "removing an entry"):
            state = read_state(entry.path)
            if not _still_there(entry, False) or (spare_kept and (state.pinned or state.label)):
                return None
            gone = discard(self.root, entry.path)
            for other in aot_folders(self.root, short):
                discard(self.root, other)
            return gone

    def find_aot(self, lookup: str, rank: str) -> list[AotFile | EntryDamaged]:
        """Return the sound AOT files with this lookup, newest first, still open, and what others lack.

        `RootUnusable` where this process cannot read, whatever lies there.
        """
        return list(find_aot(self.root, lookup, rank))

    def entry_of(self, key: str) -> Entry | None:
        """Return the entry of a whole key, None where it is not there or its header is not sound."""
        try:
            entry = Entry(self.root.cache / key[:SHORT_DIGITS])
        except EntryDamaged:
            return None
        return entry if entry.key == key else None

    def renew_aot(self, entry: Entry, rank: str, *, contained: bool = False) -> bool:
        """Write an entry's AOT file again where it is missing or not right; False where that was not done.

        `contained` puts the artifacts into it.
        What is not possible (a read-only root) is no error: a start does without the file.
        """
        try:
            with (
                build_lock(self.root, publish_lock_name(entry.short), PUBLISH_LOCK_S, "writing an AOT file"),
                typed_os_errors(self.root.path),
            ):
                return _still_there(entry, False) and renew_aot(self.root, entry, rank, contained=contained)
        except CacheError as error:
            _log.warning("the AOT file of entry %s could not be written: %s", entry.short, error)
            return False

    def contain_aot(self, entry: Entry, rank: str) -> None:
        """Make the AOT file of an entry one that holds the artifacts too.

        Unlike `renew_aot` this was asked for: `RootUnusable`, `LockTimeout` or `DiskFull` where it is not
        such a file already and cannot be made one, `EntryDamaged` where the entry is no more.
        """
        try:
            with (
                build_lock(self.root, publish_lock_name(entry.short), PUBLISH_LOCK_S, "writing an AOT file"),
                typed_os_errors(self.root.path),
            ):
                renew_aot(self.root, Entry(entry.path), rank, contained=True)
        except CacheError:
            if not holds_artifacts(self.root, entry.key, rank):
                raise

    def discard_lone(self, folder: Path) -> bool:
        """Move an AOT folder without its entry into the trash; False where its entry is there now."""
        short = folder.name[:SHORT_DIGITS]
        with build_lock(self.root, publish_lock_name(short), PUBLISH_LOCK_S, "removing an AOT file"):
            if self.entry_of(folder.name) is not None or not os.path.lexists(folder):
                return False
            discard(self.root, folder)
            return True

    def record_start(self, line: Mapping[str, Any]) -> bool:
        """Note one start in the ledger; False where that is not possible, which is never an error."""
        return append_start(self.root, line)

    def starts(self) -> list[dict[str, Any]]:
        """Return the noted starts, oldest first."""
        return read_starts(self.root.ledger)

    def _sound(self) -> list[Entry]:
        return [entry for entry in self.entries() if isinstance(entry, Entry)]

    def _open(self, path: Path) -> Entry | Broken:
        try:
            return Entry(path)
        except EntryDamaged as error:
            return Broken(path, error)

    def _folders(self) -> list[Path]:
        try:
            names = os.listdir(self.root.cache)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unusable(self.root.cache, error) from error
        return [self.root.cache / name for name in sorted(names) if SHORT.fullmatch(name)]


def _still_there(entry: Entry | Broken, only_if_damaged: bool) -> bool:
    """Say whether what lies there now is what was seen, and still deserves to be moved away."""
    try:
        now = Entry(entry.path)
    except EntryDamaged:
        return os.path.lexists(entry.path)
    if isinstance(entry, Broken) or now.identity != entry.identity:
        return False
    return not only_if_damaged or any(fault.kind != "extra" for fault in now.verify())
