"""Checked reads from an entry's folder, and what an operating system error there means."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.store.documents import DocumentFault, unseal
from graphkiln.cache.store.files import FileRecord, measure_inside, open_inside, read_inside, tree_files
from graphkiln.cache.store.oserrors import unusable

# Errors that speak of the file. Any other (too many open files, no memory) speaks of this process,
# and must not make a sound entry look damaged.
_FAULTS = {
    errno.ENOENT: ("missing", ""),
    errno.EACCES: ("unreadable", "permission denied"),
    errno.EPERM: ("unreadable", "permission denied"),
    errno.EIO: ("unreadable", "input/output error"),
    errno.EISDIR: ("unreadable", "not a regular file"),
    errno.ENXIO: ("unreadable", "not a regular file"),
    errno.ELOOP: ("unreadable", "a symbolic link"),
    errno.ENOTDIR: ("unreadable", "a link or a file stands where a folder should be"),
    errno.ENAMETOOLONG: ("unreadable", "its name is too long"),
    errno.ESTALE: ("unreadable", "stale file handle"),
}
# Far above any real document; a larger one is not read into memory to find that out.
_MAX_DOCUMENT_BYTES = 256 << 20


@dataclass(frozen=True)
class Fault:
    """One thing wrong with an entry: `kind` as in `EntryDamaged`, or `extra` for an unlisted file."""

    file: str
    kind: str
    detail: str = ""

    @classmethod
    def of(cls, damage: EntryDamaged) -> Fault:
        return cls(damage.file, damage.fault, damage.detail)


@dataclass(frozen=True)
class EntryFiles:
    """The files of the entry at `folder`, by their paths relative to it.

    Every method raises `EntryDamaged` naming the file for what is wrong with the entry.
    """

    folder: Path

    def document(self, name: str) -> dict[str, Any]:
        """Return the body of a sealed document."""
        with self.reading(name):
            return unseal(read_inside(self.folder, name, _MAX_DOCUMENT_BYTES))

    def header(self, name: str) -> tuple[dict[str, Any], tuple[int, int]]:
        """Return the body of the header and the identity of its file; one try, for it may not be there."""
        with self.reading(name), open_inside(self.folder, name) as stream:
            status = os.fstat(stream.fileno())
            return unseal(stream.read(_MAX_DOCUMENT_BYTES)), (status.st_dev, status.st_ino)

    def checked(self, name: str, record: FileRecord) -> bytes:
        """Return the bytes of a file after its size and digest agreed."""
        with self.reading(name):
            data = read_inside(self.folder, name, record.size)
            _compare(FileRecord(len(data), hashlib.sha256(data).hexdigest()), record)
            return data

    def measured(self, name: str, record: FileRecord) -> None:
        """Check size and digest of a file without holding it in memory."""
        with self.reading(name):
            _compare(measure_inside(self.folder, name), record)

    def records(self, subfolder: str) -> dict[str, FileRecord]:
        """Return the records of all files in a subfolder, by their paths relative to it."""
        with self.reading(subfolder):
            names = list(tree_files(self.folder / subfolder))
            return {name: measure_inside(self.folder, f"{subfolder}/{name}") for name in names}

    def names(self, subfolder: str = ".") -> list[str]:
        """Return the names in a subfolder, none where it is not there."""
        try:
            return sorted(os.listdir(self.folder / subfolder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._meaning(subfolder, error) from None

    @contextmanager
    def reading(self, file: str) -> Iterator[None]:
        """Turn an error of reading `file` into `EntryDamaged`, or `RootUnusable` if it is not of the file."""
        try:
            yield
        except DocumentFault as fault:
            raise EntryDamaged(self.folder.name, file, fault.fault, fault.detail) from None
        except OSError as error:
            raise self._meaning(file, error) from None

    def _meaning(self, file: str, error: OSError) -> Exception:
        if error.errno not in _FAULTS:
            return unusable(self.folder, error)
        return EntryDamaged(self.folder.name, file, *_FAULTS[error.errno])


def faults_of(action: Callable[[], object]) -> list[Fault]:
    """Return the fault that `action` runs into when it reads an entry, if any."""
    try:
        action()
    except EntryDamaged as damage:
        return [Fault.of(damage)]
    return []


def _compare(found: FileRecord, wanted: FileRecord) -> None:
    # A reader stops one byte after the size that was written, so a larger file is only known as larger.
    if found.size > wanted.size:
        raise DocumentFault("size", f"more than {wanted.size} bytes")
    if found.size < wanted.size:
        raise DocumentFault("size", f"{found.size} bytes instead of {wanted.size}")
    if found.sha256 != wanted.sha256:
        raise DocumentFault("digest", "its bytes are not those that were written")
