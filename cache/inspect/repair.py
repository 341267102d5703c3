"""Setting unsound entries aside, and bringing back what was set aside."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import CacheError, EntryNotFound, RestoreRefused
from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.inspect.sizes import file_sizes
from graphkiln.cache.inspect.verify import HALF, Verdict, is_lone, verify_entries
from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import flush_folder, open_inside
from graphkiln.cache.store.halves import renew_aot
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.oserrors import typed_os_errors
from graphkiln.cache.store.publish import PUBLISH_LOCK_S, publish_lock_name
from graphkiln.cache.store.quarantine import FOLDER, REASON_FILE, move_aside
from graphkiln.cache.store.reading import Fault
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.sweep import remove_tree

_SHORT = re.compile(rf"[0-9a-f]{{{SHORT_DIGITS}}}")
_NOT_MOVED = "it could not be moved, or was replaced meanwhile"
_MOST_REASON_BYTES = 1 << 20


@dataclass(frozen=True)
class Repaired:
    """What was moved: the entry `id`, or its `file` alone, into the folder `to`; None where it was not.

    `written` says that the file was made again in place.
    """

    id: str
    file: str
    to: Path | None
    why: str = ""
    written: bool = False


@dataclass(frozen=True)
class SetAside:
    """One folder in quarantine: what was `moved` there (an entry has its ten digits), when and why."""

    name: str
    path: Path
    moved: str
    at: str = ""
    reason: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    files: int = 0

    @property
    def is_entry(self) -> bool:
        return _SHORT.fullmatch(self.moved) is not None

    @property
    def why(self) -> str:
        """The reason as one text."""
        faults = self.reason.get("faults")
        if isinstance(faults, list) and faults and isinstance(faults[0], dict):
            first = faults[0]
            more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
            return f"{first.get('file')}: {first.get('kind')}{more}"
        return str(self.reason.get("reason") or self.reason.get("why") or "")


def repair(store: Store, verdict: Verdict) -> list[Repaired]:
    """Move an unsound entry into quarantine, or only the files that no load needs; return what was moved.

    An entry that is merely partial, or holds an absolute path, stays in use.
    """
    if verdict.damaged:
        return [_aside(store, verdict)]
    if verdict.entry is None:
        return [_lone_half(store, verdict)]
    moved = [_lone(store.root, verdict, fault) for fault in verdict.faults if is_lone(fault)]
    return moved + [_renewed(store, verdict, fault) for fault in verdict.faults if fault.kind == HALF]


def _renewed(store: Store, verdict: Verdict, fault: Fault) -> Repaired:
    """Write an AOT file again from its entry."""
    assert isinstance(verdict.entry, Entry)
    rank = fault.file.split("/")[-2].removeprefix("rank_")
    written = store.renew_aot(verdict.entry, rank)
    return Repaired(verdict.id, fault.file, None, "" if written else _NOT_MOVED, written)


def _lone_half(store: Store, verdict: Verdict) -> Repaired:
    """Move an AOT folder without its entry into the trash."""
    try:
        moved = store.discard_lone(verdict.path)
    except CacheError as error:
        return Repaired(verdict.id, verdict.path.name, None, str(error))
    place = store.root.trash if moved else None
    return Repaired(verdict.id, verdict.path.name, place, "" if moved else _NOT_MOVED)


def set_aside_failing(store: Store, verdict: Verdict, what: str) -> Repaired:
    """Move an entry into quarantine whose bytes are right and whose code fails when it is called."""
    assert verdict.entry is not None
    place = store.set_aside(verdict.entry, {"reason": f"its smoke call failed: {what}"})
    return Repaired(verdict.id, "", place, "" if place else _NOT_MOVED)


def quarantined(root: CacheRoot) -> list[SetAside]:
    """Return what is in quarantine, oldest first; other names there are not ours and left out."""
    try:
        names = sorted(name for name in os.listdir(root.quarantine) if FOLDER.fullmatch(name))
    except OSError:
        return []
    found = [_set_aside(root.quarantine / name) for name in names]
    return sorted(found, key=lambda item: (item.at, item.name))


def find_quarantined(root: CacheRoot, ref: str) -> SetAside:
    """Return the newest entry in quarantine whose folder's name begins with `ref`, or its key."""
    matches = [
        item
        for item in quarantined(root)
        if item.is_entry
        and (item.name.startswith(ref) or (len(ref) > SHORT_DIGITS and ref.startswith(item.moved)))
    ]
    if not ref or not matches:
        raise EntryNotFound(ref)
    return matches[-1]


def restore(store: Store, item: SetAside) -> Entry:
    """Put an entry from quarantine back in its place after verifying it; return it.

    `RestoreRefused` where it is still damaged, or where another entry lies in its place.
    """
    lying, place = item.path / item.moved, store.root.cache / item.moved
    [verdict] = verify_entries([lying])
    if verdict.damaged:
        fault = next(fault for fault in verdict.faults if not is_lone(fault))
        raise RestoreRefused(item.name, f"it is still damaged: {fault.file}: {fault.kind}")
    with build_lock(store.root, publish_lock_name(item.moved), PUBLISH_LOCK_S, "restoring an entry"):
        if os.path.lexists(place):
            raise RestoreRefused(item.name, f"an entry {item.moved} is there again")
        with typed_os_errors(store.root.path):
            os.rename(lying, place)
            flush_folder(store.root.cache)
            entry = Entry(place)
            for rank in entry.ranks() if entry.aot is not None else ():
                renew_aot(store.root, entry, rank)
        # The entry is back: what is left of its quarantine folder is no reason to fail.
        remove_tree(item.path)
    return entry


def _aside(store: Store, verdict: Verdict) -> Repaired:
    faults = [asdict(fault) for fault in verdict.faults]
    assert verdict.entry is not None
    place = store.set_aside(verdict.entry, {"why": "found unsound by verify", "faults": faults})
    return Repaired(
        verdict.id, "", place, "" if place else "it could not be moved, or was replaced meanwhile"
    )


def _lone(root: CacheRoot, verdict: Verdict, fault: Fault) -> Repaired:
    reason = {"why": "found unsound by verify", "faults": [asdict(fault)], "from": fault.file}
    try:
        with (
            build_lock(root, publish_lock_name(verdict.id), PUBLISH_LOCK_S, "setting a file aside"),
            typed_os_errors(root.path),
        ):
            return Repaired(
                verdict.id, fault.file, move_aside(root, verdict.path / fault.file, verdict.id, reason)
            )
    except CacheError as error:
        return Repaired(verdict.id, fault.file, None, str(error))


def _set_aside(path: Path) -> SetAside:
    sizes = file_sizes(path)
    try:
        with open_inside(path, REASON_FILE) as stream:
            record = parse_object(stream.read(_MOST_REASON_BYTES))
    except (OSError, DocumentFault):
        record = {}
    moved, reason = record.get("moved"), record.get("reason")
    if not isinstance(moved, str) or "/" in moved:
        # The reason was lost: what lies there says itself what it is.
        moved = next((name.split("/")[0] for name in sorted(sizes) if name != REASON_FILE), "")
    return SetAside(
        path.name,
        path,
        moved,
        str(record.get("at", "")),
        reason if isinstance(reason, dict) else {},
        sum(sizes.values()),
        len(sizes),
    )
