"""What is wrong with an entry: every digest, every schema, every expected rank, nothing unlisted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from graphkiln.cache.store.files import FileRecord, tree_files
from graphkiln.cache.store.manifest import FACTORS_FILE, HEADER_FILE, MANIFEST_FILE, rank_folder
from graphkiln.cache.store.reading import Fault, faults_of
from graphkiln.cache.store.reports import REPORTS_FOLDER
from graphkiln.cache.store.state import STATE_FILE

if TYPE_CHECKING:
    from graphkiln.cache.store.entries import Entry


def verify_rank(entry: Entry, rank: str) -> list[Fault]:
    """Return the faults of one rank: its manifest, each file that it lists, files that it does not list."""
    folder = rank_folder(rank)
    faults = faults_of(lambda: entry.manifest(rank))
    if faults:
        return faults
    files = entry.manifest(rank).files
    for name, record in sorted(files.items()):
        faults += _measured(entry, name, record)
    there = (f"{folder}/{name}" for name in tree_files(entry.path / folder))
    return faults + _extra(there, {*files, f"{folder}/{MANIFEST_FILE}"})


def verify_shared(entry: Entry) -> list[Fault]:
    """Return the faults of what all ranks share: the factors and the source files."""
    faults = faults_of(entry.factors)
    for sha256, size in sorted(entry.header["sources"].items()):
        faults += _measured(entry, f"source/{sha256}.py", FileRecord(size, sha256))
    return faults


def verify_rest(entry: Entry) -> list[Fault]:
    """Return the faults that no single rank shows: missing ranks, and what nothing lists."""
    ranks, faults = entry.ranks(), []
    for rank in sorted(set(entry.ranks_expected) - set(ranks)):
        faults.append(Fault(rank_folder(rank), "missing", "an expected rank"))
    listed = {HEADER_FILE, FACTORS_FILE, STATE_FILE}
    listed |= {f"source/{sha256}.py" for sha256 in entry.header["sources"]}
    own = tuple(f"{rank_folder(rank)}/" for rank in ranks)
    for rank in ranks:
        if not faults_of(lambda rank=rank: entry.manifest(rank)):  # type: ignore[misc]
            listed |= set(entry.manifest(rank).files)
    there = (name for name in tree_files(entry.path) if not name.startswith((*own, f"{REPORTS_FOLDER}/")))
    return faults + _extra(there, listed)


def _measured(entry: Entry, name: str, record: FileRecord) -> list[Fault]:
    return faults_of(lambda: entry.files.measured(name, record))


def _extra(there: Iterable[str], listed: set[str]) -> list[Fault]:
    return [Fault(name, "extra", "nothing lists it") for name in sorted(set(there) - listed)]
