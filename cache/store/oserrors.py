"""Operating system errors as typed ones: what is full, what cannot be written, what to do about it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphkiln.cache.errors import DiskFull, RootUnusable

_FULL = {errno.ENOSPC, errno.EDQUOT}
_ELSEWHERE = "choose another folder with --cache-root or GRAPHKILN_CACHE_ROOT"
_REMEDIES = {
    errno.EROFS: f"make it writable, or {_ELSEWHERE}",
    errno.EACCES: f"give this user write access, or {_ELSEWHERE}",
    errno.EPERM: f"give this user write access, or {_ELSEWHERE}",
    errno.ENOTDIR: f"remove the file that stands where a folder is needed, or {_ELSEWHERE}",
    errno.EEXIST: f"remove the file that stands where a folder is needed, or {_ELSEWHERE}",
    errno.ENAMETOOLONG: f"{_ELSEWHERE}, one with a shorter path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


@contextmanager
def typed_os_errors(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError of the block into `DiskFull` or `RootUnusable`, both naming `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(path, needed_bytes) from error
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> RootUnusable:
    """Return the `RootUnusable` that says what `error` means for the cache at `path`."""
    reason = (error.strerror or str(error)).lower()
    where = error.filename
    if isinstance(where, (str, bytes)) and os.fsdecode(where) != str(path):
        reason += f": {os.fsdecode(where)}"
    return RootUnusable(path, reason, _REMEDIES.get(error.errno or 0, _ELSEWHERE))
