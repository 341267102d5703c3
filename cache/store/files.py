"""Reading and writing files of an entry: never through a link, never outside the entry's folder."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

# What an open may say in the first moments after a rename on a network file system.
_PASSING = {errno.ESTALE, errno.ENOENT}
_RETRY_WAITS_S = (0.01, 0.04, 0.1)
_CHUNK = 1 << 20

_T = TypeVar("_T")


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str


def relative_parts(name: str) -> tuple[str, ...]:
    """Return the parts of a path relative to an entry; ValueError for one that could lead out of it."""
    parts = tuple(name.split("/"))
    if not all(parts) or {".", ".."} & set(parts) or "\0" in name or "\\" in name:
        raise ValueError(f"not a relative path inside the entry: {name!r}")
    return parts


@contextmanager
def open_inside(folder: Path, name: str) -> Iterator[BufferedReader]:
    """Open a regular file by its path relative to `folder`, refusing links on the way, `folder` included."""
    *parents, last = relative_parts(name)
    steps = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder, steps)
    try:
        for part in parents:
            above, descriptor = descriptor, os.open(part, steps, dir_fd=descriptor)
            os.close(above)
        # Non-blocking, or a planted pipe would hold the reader for ever.
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    with open(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EISDIR, "not a regular file", name)
        yield stream


def read_inside(folder: Path, name: str, size: int) -> bytes:
    """Return the bytes of a file that should be there and hold `size` bytes, and no more than one more.

    Tries again for a moment where a network file system lags behind a rename.
    """
    return _retried(lambda: _read(folder, name, size + 1))


def measure_inside(folder: Path, name: str) -> FileRecord:
    """Return size and digest of a file that should be there, without holding it in memory."""
    return _retried(lambda: _measure(folder, name))


def write_new(path: Path, data: bytes) -> FileRecord:
    """Write a file that must not exist yet, private to this user; return its record."""
    return copy_new(BytesIO(data), path)


def copy_new(source: BinaryIO, path: Path) -> FileRecord:
    """Write what `source` gives to a file that must not exist yet; return its record."""
    digest, size = hashlib.sha256(), 0
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as target:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[target.write(rest) :]
    return FileRecord(size, digest.hexdigest())


def flush_tree(folder: Path) -> None:
    """Make a folder and everything in it durable, and private to this user."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = os.path.join(parent, name)
            os.chmod(path, 0o600)
            _flush(path)
        os.chmod(parent, 0o700)
        flush_folder(Path(parent))


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the file system knows how to."""
    try:
        _flush(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def tree_files(folder: Path) -> Iterator[str]:
    """Yield the path, relative to `folder`, of everything in it that is not a real folder."""
    for parent, folders, names in os.walk(folder):
        inside = PurePosixPath(parent).relative_to(folder)
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (str(inside / name) for name in sorted([*names, *links]))


def tree_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; what goes away meanwhile does not count."""
    total = 0
    for name in tree_files(folder):
        with suppress(FileNotFoundError):
            total += os.lstat(folder / name).st_size
    return total


def _read(folder: Path, name: str, most: int) -> bytes:
    with open_inside(folder, name) as stream:
        return stream.read(most)


def _measure(folder: Path, name: str) -> FileRecord:
    with open_inside(folder, name) as stream:
        # One buffer for the whole file: a new one for every chunk takes as long as the digest.
        digest = hashlib.file_digest(stream, "sha256")
        return FileRecord(stream.tell(), digest.hexdigest())


def _retried(action: Callable[[], _T]) -> _T:
    for wait in _RETRY_WAITS_S:
        try:
            return action()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(wait)
    return action()


def _flush(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
