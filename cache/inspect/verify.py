"""Whether entries are what they say they are: every byte, every name, every rank and piece, every owner.

Everything is read anew and nothing is parsed before its digest agreed. Files are read by several threads,
entry by entry, so that the disk is what limits it. Each fault is told once, at the file where it is: what
follows from it (the files that an unreadable manifest would have listed) is not told.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.inspect.contents import check_document, faults_in_pieces, found_paths
from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import FileRecord, read_inside, tree_bytes, tree_files
from graphkiln.cache.store.halves import faults_of_aot
from graphkiln.cache.store.manifest import FACTORS_FILE, HEADER_FILE, MANIFEST_FILE, Manifest, rank_folder
from graphkiln.cache.store.reading import EntryFiles, Fault
from graphkiln.cache.store.reports import REPORTS_FOLDER
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.state import STATE_FILE
from graphkiln.cache.store.store import Broken

# A load stumbles over these; the others are told and leave an entry in use.
DAMAGE = frozenset({"missing", "size", "digest", "schema", "unreadable", "symlink", "owner"})
# Moved away alone, they leave a sound entry.
LONE = "extra"
# An AOT file that is not there, not right, or there without its entry: a start does without it.
HALF = "half"
_READ_WHOLE = (".json", ".py", ".cpp", ".h", ".txt")
_MOST_READ_WHOLE = 16 << 20
_MOST_THREADS = 8

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Verdict:
    """What was found about one entry: `faults` of any kind, and `missing_ranks` of a partial one."""

    id: str
    path: Path
    faults: tuple[Fault, ...]
    missing_ranks: tuple[str, ...] = ()
    size: int = 0
    files: int = 0
    # What was looked at, so that a repair does not move what took its place.
    entry: Entry | Broken | None = field(default=None, repr=False, compare=False)

    @property
    def status(self) -> str:
        """sound, partial (a rank or an AOT file is not there, nothing is wrong with the rest) or broken."""
        if any(fault.kind != HALF for fault in self.faults):
            return "broken"
        return "partial" if self.missing_ranks or self.faults else "sound"

    @property
    def damaged(self) -> bool:
        """Whether a start could stumble over it."""
        return any(fault.kind in DAMAGE and not is_lone(fault) for fault in self.faults)


def is_lone(fault: Fault) -> bool:
    """Say whether a fault is a file that no load needs: moved away, it leaves nothing wrong behind."""
    return fault.kind == LONE or fault.file == STATE_FILE or fault.file.startswith(f"{REPORTS_FOLDER}/")


def verify_entries(paths: Iterable[Path], progress: Progress | None = None) -> list[Verdict]:
    """Return the verdict on each entry folder; `progress` gets bytes done and bytes in all."""
    surveys = [_survey(path) for path in paths]
    total = sum(record.size for survey in surveys for record in survey.listed.values())
    done = 0
    jobs = [(survey, name) for survey in surveys for name in sorted(survey.listed)]
    found: dict[int, list[Fault]] = {id(survey): [] for survey in surveys}
    pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
    try:
        for (survey, name), faults in zip(jobs, pool.map(_checked, jobs), strict=True):
            found[id(survey)] += faults
            done += survey.listed[name].size
            if progress is not None:
                progress(done, total)
    finally:
        # Who interrupts a long run does not wait for the rest of it.
        pool.shutdown(cancel_futures=True)
    return [_verdict(survey, found[id(survey)]) for survey in surveys]


@dataclass(frozen=True)
class _Survey:
    """An entry before its files are read: what is there, what should be, and what is wrong so far."""

    path: Path
    entry: Entry | None
    there: Mapping[str, os.stat_result]
    listed: Mapping[str, FileRecord] = field(default_factory=dict)
    manifests: tuple[Manifest, ...] = ()
    faults: tuple[Fault, ...] = ()
    unlisted: tuple[str, ...] = ()


def _survey(path: Path) -> _Survey:
    there, faults = _walk(path)
    wrong = {fault.file for fault in faults}
    if wrong & {".", HEADER_FILE}:
        return _Survey(path, None, there, faults=tuple(faults))
    try:
        entry = Entry(path)
    except EntryDamaged as damage:
        return _Survey(path, None, there, faults=(Fault.of(damage),))
    listed = {FACTORS_FILE: _record(entry)}
    listed |= {f"source/{sha}.py": FileRecord(size, sha) for sha, size in entry.header["sources"].items()}
    manifests, blind = [], []
    for rank in entry.ranks():
        name = f"{rank_folder(rank)}/{MANIFEST_FILE}"
        try:
            manifests.append(entry.manifest(rank))
            listed |= manifests[-1].files
        except EntryDamaged as damage:
            blind.append(f"{rank_folder(rank)}/")
            if not _under(name, wrong):
                faults.append(Fault.of(damage))
    known = {
        HEADER_FILE,
        STATE_FILE,
        *listed,
        *(f"{rank_folder(rank)}/{MANIFEST_FILE}" for rank in entry.ranks()),
    }
    # Without a manifest nobody knows which files it listed.
    hidden = (f"{REPORTS_FOLDER}/", *blind, *(["artifacts/"] if blind else []))
    unlisted = [name for name in there if name not in known and not name.startswith(hidden)]
    # What a link or a wrong owner already says about a file is enough.
    checked = {name: record for name, record in listed.items() if not _under(name, wrong)}
    return _Survey(path, entry, there, checked, tuple(manifests), tuple(faults), tuple(unlisted))


def _record(entry: Entry) -> FileRecord:
    record = entry.header["factors"]
    return FileRecord(record["size"], record["sha256"])


def _walk(path: Path) -> tuple[dict[str, os.stat_result], list[Fault]]:
    """Return all files in a folder, and the faults of links, of owners and of what cannot be read."""
    try:
        top = os.lstat(path)
    except OSError as error:
        return {}, [Fault(".", "missing", (error.strerror or "").lower())]
    if stat.S_ISLNK(top.st_mode):
        return {}, [Fault(".", "symlink", "the entry is a link to somewhere else")]
    if not stat.S_ISDIR(top.st_mode):
        return {}, [Fault(".", "unreadable", "not a folder")]
    trusted = {0, os.getuid(), top.st_uid}
    there: dict[str, os.stat_result] = {}
    faults: list[Fault] = []
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            items = sorted(os.scandir(path / inside if inside else path), key=lambda item: item.name)
        except OSError as error:
            faults.append(Fault(inside or ".", "unreadable", (error.strerror or "").lower()))
            continue
        for item in items:
            name = f"{inside}/{item.name}" if inside else item.name
            status = item.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                faults.append(Fault(name, "symlink", "an entry holds no links"))
            elif status.st_uid not in trusted:
                faults.append(Fault(name, "owner", f"it belongs to uid {status.st_uid}"))
            elif stat.S_ISDIR(status.st_mode):
                pending.append(name)
            else:
                there[name] = status
    return there, faults


def _under(name: str, wrong: set[str]) -> bool:
    """Say whether a path, or a folder on the way to it, is one of `wrong`."""
    parts = name.split("/")
    return any("/".join(parts[:length]) in wrong for length in range(1, len(parts) + 1))


def _checked(job: tuple[_Survey, str]) -> list[Fault]:
    """Return the faults of one listed file: its bytes, and what stands in it where a person can read it."""
    survey, name = job
    record, files = survey.listed[name], EntryFiles(survey.path)
    try:
        if not name.endswith(_READ_WHOLE) or record.size > _MOST_READ_WHOLE:
            files.measured(name, record)
            return []
        data = files.checked(name, record)
    except EntryDamaged as damage:
        return [Fault.of(damage)]
    assert survey.entry is not None
    faults = check_document(survey.entry, name, data)
    # The text of a source file is a copy of somebody's, never opened by a load.
    return faults + ([] if name.startswith("source/") else found_paths(name, data))


def _verdict(survey: _Survey, faults: Sequence[Fault]) -> Verdict:
    found = [*survey.faults, *faults, *_loose(survey)]
    missing: tuple[str, ...] = ()
    if survey.entry is not None:
        found += [Fault(name, LONE, "nothing lists it") for name in survey.unlisted]
        if not any(fault.kind in DAMAGE for fault in found):
            found += faults_in_pieces(survey.entry, survey.manifests)
        found += _halves(survey.entry)
        missing = tuple(sorted(set(survey.entry.ranks_expected) - set(survey.entry.ranks())))
    size = sum(status.st_size for status in survey.there.values())
    ordered = sorted(set(found), key=lambda fault: (fault.file, fault.kind, fault.detail))
    seen = survey.entry or Broken(survey.path, EntryDamaged(survey.path.name, *_first(ordered)))
    return Verdict(survey.path.name, survey.path, tuple(ordered), missing, size, len(survey.there), seen)


def _halves(entry: Entry) -> list[Fault]:
    """Return what is wrong with the AOT files that lie beside an entry."""
    if entry.path.name != entry.short:
        # A copy under another name lies beside no AOT files.
        return []
    # Only the folder of the entries matters: an entry in quarantine has its AOT files beside it too.
    root = CacheRoot(entry.path.parent, entry.path.parent)
    faults = (Fault.of(damage) for damage in faults_of_aot(root, entry))
    return [Fault(fault.file, HALF, f"{fault.kind} {fault.detail}".strip()) for fault in faults]


def verify_lone(folders: Iterable[Path]) -> list[Verdict]:
    """Return the verdicts on AOT folders without their entry: nobody can use them by their key."""
    fault = Fault(".", HALF, "its entry is not there")
    return [
        Verdict(
            folder.name[:SHORT_DIGITS],
            folder,
            (fault,),
            size=tree_bytes(folder),
            files=sum(1 for _ in tree_files(folder)),
        )
        for folder in folders
    ]


def _first(faults: Sequence[Fault]) -> tuple[str, str, str]:
    return faults[0].file, faults[0].kind, faults[0].detail


def _loose(survey: _Survey) -> list[Fault]:
    """Return the faults of what stands in no list: documents with a digest of their own, state, reports."""
    found = []
    for manifest in survey.manifests:
        # What the compiler says of itself (`build`) is a record, and may name places.
        specific = json.dumps(dict(manifest.specific)).encode()
        found += found_paths(f"{rank_folder(manifest.rank)}/{MANIFEST_FILE}", specific)
    if survey.entry is not None:
        found += found_paths(HEADER_FILE, json.dumps(dict(survey.entry.header)).encode())
        for name in survey.there:
            if name == STATE_FILE or (name.startswith(f"{REPORTS_FOLDER}/") and name.endswith(".json")):
                found += _readable(survey.path, name)
    return found


def _readable(path: Path, name: str) -> list[Fault]:
    try:
        parse_object(read_inside(path, name, _MOST_READ_WHOLE))
    except DocumentFault as fault:
        return [Fault(name, fault.fault, fault.detail)]
    except OSError as error:
        return [Fault(name, "unreadable", (error.strerror or "").lower())]
    return []
