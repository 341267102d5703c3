"""What lies in a cache, from one scan: a row for every entry, sound or not, as lists and filters need it.

No file is digested but the headers and manifests: that a listed file is there with its size is seen,
that its bytes are right is not. `verify` finds that out. Nothing that is wrong with an entry ends a scan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import AmbiguousEntry, EntryDamaged, EntryNotFound
from graphkiln.cache.inspect.sizes import file_sizes
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import FileRecord
from graphkiln.cache.store.halves import AOT_FOLDER, aot_folders, aot_name, lone_halves
from graphkiln.cache.store.layout import foreign_names
from graphkiln.cache.store.manifest import FACTORS_FILE, HEADER_FILE, MANIFEST_FILE, rank_folder
from graphkiln.cache.store.reading import Fault
from graphkiln.cache.store.reports import REPORTS_FOLDER
from graphkiln.cache.store.state import STATE_FILE, read_state
from graphkiln.cache.store.store import Broken, Store


@dataclass(frozen=True)
class Row:
    """One entry. `size` in bytes, times as ISO texts in UTC; `hits` are those that the ledger still holds,
    None where nobody counts them.

    `health` is sound, partial (an expected rank is not there) or broken, and `fault` says why.
    A broken entry may have no key. `superseded` says that a newer entry answers to the same env,
    config and target; `foreign` are files in its folder that are not ours. `entry` reads more, where the
    header can be read.
    """

    id: str
    path: Path
    key: str = ""
    lookup: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    target: str = ""
    dtype: str = ""
    size: int = 0
    files: int = 0
    created: str = ""
    last_used: str | None = None
    hits: int | None = 0
    label: str | None = None
    pinned: bool = False
    health: str = "sound"
    fault: str = ""
    superseded: bool = False
    foreign: tuple[str, ...] = ()
    entry: Entry | Broken | None = field(default=None, repr=False, compare=False)

    @property
    def statuses(self) -> tuple[str, ...]:
        """All that holds for the entry, its health first."""
        more = (("pinned", self.pinned), ("superseded", self.superseded))
        return (self.health, *(name for name, holds in more if holds))

    @property
    def status(self) -> str:
        """The statuses as one text; sound is said only where nothing else is to be said."""
        telling = [name for name in self.statuses if name != "sound"]
        return ", ".join(telling) or "sound"

    @property
    def spared(self) -> str:
        """Why no rule may remove it, "" where one may."""
        if self.pinned:
            return "it is pinned"
        if self.label:
            return f"it has the label {self.label}"
        if self.foreign == (".",):
            return "nothing tells that graphkiln wrote it"
        return f"it holds a file that graphkiln did not write: {self.foreign[0]}" if self.foreign else ""

    @property
    def doubt(self) -> str:
        """What a removal of it takes along on a guess, in words to stand behind a reason."""
        return ""

    @property
    def idle_since(self) -> str | None:
        """Since when nobody uses it, where that is known: one never used waits since it was made."""
        return self.last_used or self.created

    def factors(self) -> Mapping[str, Any] | None:
        """Return the values of the factors, their file's digest checked; None where that is not possible.

        Reads them each time: those of a few hundred entries are too much to keep.
        """
        if not isinstance(self.entry, Entry):
            return None
        record = self.entry.header["factors"]
        try:
            data = self.entry.files.checked(FACTORS_FILE, FileRecord(record["size"], record["sha256"]))
        except EntryDamaged:
            return None
        # The digest in the header is that of canonical JSON that we wrote.
        found = json.loads(data)
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Catalogue:
    """Every entry of the cache at `root`, newest first and broken headers last; `foreign` are other names."""

    root: Path
    rows: tuple[Row, ...]
    foreign: tuple[str, ...]
    # AOT folders without their entry.
    lone: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        return sum(row.size for row in self.rows)

    @property
    def files(self) -> int:
        return sum(row.files for row in self.rows)


def scan(store: Store) -> Catalogue:
    """Return what lies in a cache; raises only for a cache folder that cannot be read at all."""
    uses = _uses(store.starts())
    rows = [_with_aot(store, _row(entry, uses)) for entry in store.entries()]
    known = {row.path.name for row in rows}
    lone = lone_halves(store.root, (row.key for row in rows))
    # Of a broken entry nobody knows the key: what begins like it may be its own.
    unclear = tuple(row.id for row in rows if not row.key)
    lone = [folder for folder in lone if not folder.name.startswith(unclear)] if unclear else lone
    return Catalogue(store.root.path, tuple(_superseded(rows)), _others(store, known), tuple(lone))


def find_row(catalogue: Catalogue, ref: str) -> Row:
    """Return the entry, sound or not, that `ref` names: a key or its beginning, a label, or a path.

    `EntryNotFound`, `AmbiguousEntry`.
    """
    place = os.path.abspath(ref)
    matches = [row for row in catalogue.rows if ref and os.sep in ref and str(row.path) == place]
    matches = matches or [
        row for row in catalogue.rows if ref and (row.key or row.id).startswith(ref[: len(row.key or row.id)])
    ]
    matches = matches or [row for row in catalogue.rows if ref and row.label == ref]
    if not matches:
        raise EntryNotFound(ref)
    if len(matches) > 1:
        raise AmbiguousEntry(ref, tuple(row.key or row.id for row in matches))
    return matches[0]


def _row(entry: Entry | Broken, uses: Mapping[str, _Use]) -> Row:
    # A link in an entry's place leads to what is not ours, not even to be counted.
    sizes = {} if os.path.islink(entry.path) else file_sizes(entry.path)
    row = Row(entry.path.name, entry.path, size=sum(sizes.values()), files=len(sizes), entry=entry)
    if isinstance(entry, Broken):
        state = read_state(entry.path)
        return replace(
            row,
            health="broken",
            fault=_text(Fault.of(entry.error)),
            label=state.label,
            pinned=state.pinned,
            foreign=foreign_names(sizes),
        )
    header, state, use = entry.header, entry.state, uses.get(entry.key, _Use())
    target = header.get("target")
    listed, damage = _listed(entry)
    health, fault = ("broken", damage) if damage else _health(entry, sizes, listed)
    unlisted = set(sizes) - set(listed) - {HEADER_FILE, STATE_FILE}
    foreign = [name for name in sorted(unlisted) if not name.startswith(f"{REPORTS_FOLDER}/")]
    return replace(
        row,
        key=entry.key,
        lookup=entry.lookup,
        hashes=dict(header["hashes"]),
        model=str(header.get("model", "")),
        target=str(target.get("name", "")) if isinstance(target, Mapping) else "",
        dtype=str(header.get("dtype", "")),
        created=entry.created,
        last_used=max(filter(None, (state.last_used, use.last)), default=None),
        hits=use.hits,
        label=state.label,
        pinned=state.pinned,
        health=health,
        fault=fault,
        # With a manifest that cannot be read, a name is all that there is to judge by.
        foreign=foreign_names(sizes) if damage else tuple(foreign),
    )


def _with_aot(store: Store, row: Row) -> Row:
    """Return a row that counts the AOT files, and says where one that should be there is not."""
    sizes = [size for folder in aot_folders(store.root, row.id) for size in file_sizes(folder).values()]
    row = replace(row, size=row.size + sum(sizes), files=row.files + len(sizes))
    entry = row.entry
    if row.health != "sound" or not isinstance(entry, Entry) or entry.aot is None:
        return row
    names = [aot_name(entry.key, rank) for rank in entry.ranks()]
    missing = [name for name in names if not os.path.isfile(store.root.cache / name)]
    return replace(row, health="partial", fault=f"{missing[0]}: missing") if missing else row


def _listed(entry: Entry) -> tuple[dict[str, int | None], str]:
    """Return the size of each file that an entry should hold, None for any, and why there may be more."""
    listed: dict[str, int | None] = {FACTORS_FILE: int(entry.header["factors"]["size"])}
    listed |= {f"source/{sha256}.py": size for sha256, size in entry.header["sources"].items()}
    try:
        for rank in entry.ranks():
            name = f"{rank_folder(rank)}/{MANIFEST_FILE}"
            listed[name] = None
            # Not `entry.manifest`: the digests in it take longer than all else here, and are for `verify`.
            files = entry.files.document(name).get("files")
            listed |= {file: record["size"] for file, record in dict(files or {}).items()}
    except EntryDamaged as damage:
        return listed, _text(Fault.of(damage))
    except (TypeError, KeyError, ValueError):
        return listed, f"{name}: schema (files: not sizes and digests)"
    return listed, ""


def _health(entry: Entry, sizes: Mapping[str, int], listed: Mapping[str, int | None]) -> tuple[str, str]:
    """Return what the names and sizes of an entry's files say about it, and why."""
    for name, size in sorted(listed.items()):
        if name not in sizes:
            return "broken", f"{name}: missing"
        if size is not None and sizes[name] != size:
            return "broken", f"{name}: size ({sizes[name]} bytes instead of {size})"
    missing = sorted(set(entry.ranks_expected) - set(entry.ranks()))
    return ("partial", f"no rank {', '.join(missing)}") if missing else ("sound", "")


@dataclass(frozen=True)
class _Use:
    hits: int = 0
    last: str | None = None


def _uses(starts: Iterable[Mapping[str, Any]]) -> dict[str, _Use]:
    """Return by key how often the ledger's starts hit it, and when one last used it."""
    uses: dict[str, _Use] = {}
    for start in starts:
        key, outcome, at = start.get("key"), start.get("outcome"), start.get("at")
        if isinstance(key, str) and outcome in ("hit", "compiled"):
            before = uses.get(key, _Use())
            hits = before.hits + (outcome == "hit")
            uses[key] = _Use(hits, at if outcome == "hit" and isinstance(at, str) else before.last)
    return uses


def _superseded(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, those marked for which a newer whole entry has the same env, config and target."""
    newest: dict[tuple[str, ...], Row] = {}
    for row in rows:
        group = _group(row)
        if row.health == "sound" and (group not in newest or newest[group].created < row.created):
            newest[group] = row
    return [
        replace(row, superseded=True)
        if row.key and (best := newest.get(_group(row))) and best.created > row.created
        else row
        for row in rows
    ]


def _group(row: Row) -> tuple[str, ...]:
    # Entries for two targets serve two machines: neither is an older form of the other.
    return row.hashes.get("env", ""), row.hashes.get("config", ""), row.target


def _others(store: Store, known: set[str]) -> tuple[str, ...]:
    try:
        names = os.listdir(store.root.cache)
    except OSError:
        return ()
    # An explicit cache folder keeps our own things beside the entries.
    return tuple(sorted(set(names) - known - {store.root.path.name, AOT_FOLDER}))


def _text(fault: Fault) -> str:
    return f"{fault.file}: {fault.kind}" + (f" ({fault.detail})" if fault.detail else "")
