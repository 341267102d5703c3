"""Reading files of a foreign tree: regular files only, no link is followed below the tree's own root."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from graphkiln.cache.layouts.spans import OpenFile, Span
from graphkiln.cache.store.files import open_inside

# A mega AOT model of a large deployment holds every piece of every range; beyond this it is no such file.
MOST_BYTES = 4 << 30
# The kind of what is there and cannot be looked into; it is no sign of damage.
UNREAD = "unread"
_ALL_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_MOST_SEEN = 6
_REASONS = {
    errno.ENOENT: ("missing", ""),
    errno.ELOOP: ("symlink", "it is a link, and no link is followed"),
    errno.ENOTDIR: ("symlink", "a link or a file stands where a folder should be"),
    errno.EISDIR: ("unreadable", "not a regular file"),
    errno.ENXIO: ("unreadable", "not a regular file"),
}


class FileFault(Exception):
    """A file of a tree cannot be read: `name` relative to the folder, `kind` and `detail` as in `Fault`."""

    def __init__(self, name: str, kind: str, detail: str = "") -> None:
        super().__init__(name, kind, detail)
        self.name, self.kind, self.detail = name, kind, detail

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}" + (f" ({self.detail})" if self.detail else "")


def read_file(folder: Path, name: str, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of the file `name` below `folder`; `FileFault` for what is no readable file."""
    with open_file(folder, name, most) as whole:
        return whole.read()


@contextmanager
def open_file(folder: Path, name: str, most: int = MOST_BYTES) -> Iterator[Span]:
    """Open the file `name` below `folder`; `FileFault` for what is no readable file, then or while open."""
    try:
        with open_inside(folder, name) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > most:
                raise FileFault(name, "size", f"{size} bytes are more than {most}")
            yield Span(OpenFile(stream.fileno()), 0, size)
    except OSError as error:
        kind, detail = _REASONS.get(error.errno or 0, ("unreadable", (error.strerror or "").lower()))
        raise FileFault(name, kind, detail) from None
    except ValueError as error:
        raise FileFault(name, "unreadable", str(error)) from None


def read_head(folder: Path, name: str, size: int = 1 << 14) -> str:
    """Return the beginning of a text, "" for one that cannot be read."""
    try:
        with open_inside(folder, name) as stream:
            return stream.read(size).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def last_byte(folder: Path, name: str) -> bytes:
    """Return the last byte of a file, b"" for an empty one and for one that cannot be read."""
    try:
        with open_inside(folder, name) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 1, 0))
            return stream.read(1)
    except (OSError, ValueError):
        return b""


@dataclass(frozen=True)
class Stat:
    """Size in bytes and time of change in seconds of one file; `kind` is file, link, other or `UNREAD`."""

    size: int
    mtime: float
    kind: str = "file"


def walk(folder: Path) -> dict[str, Stat]:
    """Return everything below a folder that is not a real folder, by its path relative to it.

    A folder that cannot be listed is there as `UNREAD`, `folder` itself as "."; what went away is not. What
    stands in the place of `folder` and is none is "." too.
    """
    found: dict[str, Stat] = {}
    if not is_folder(folder):
        seen = _stat_of(str(folder))
        return {} if seen is None else {".": seen}
    pending = [(str(folder), "")]
    while pending:
        place, inside = pending.pop()
        try:
            with os.scandir(place) as items:
                for item in items:
                    if item.is_dir(follow_symlinks=False):
                        pending.append((item.path, f"{inside}{item.name}/"))
                        continue
                    seen = _stat_of(item.path)
                    if seen is not None:
                        found[inside + item.name] = seen
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            seen = _stat_of(place)
            if seen is not None:
                found[inside.rstrip("/") or "."] = replace(seen, size=0, kind=UNREAD)
    return found


def _stat_of(path: str) -> Stat | None:
    """Return what is known of a file, None where it is gone."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Stat(0, 0.0, UNREAD)
    link, file = stat.S_ISLNK(status.st_mode), stat.S_ISREG(status.st_mode)
    # What everybody may read needs no second look.
    if file and status.st_mode & _ALL_READ != _ALL_READ and not os.access(path, os.R_OK, effective_ids=True):
        return Stat(status.st_size, status.st_mtime, UNREAD)
    return Stat(status.st_size, status.st_mtime, "link" if link else "file" if file else "other")


def iso_time(moment: float | None) -> str:
    """Return seconds since 1970 as an ISO text in UTC, "" for none and for what no calendar has."""
    try:
        return "" if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def unread_in(files: Mapping[str, Stat]) -> str:
    """Return the first name that could not be looked into, "" where all could."""
    return min((name for name, seen in files.items() if seen.kind == UNREAD), default="")


def is_folder(path: Path) -> bool:
    """Return whether a real folder lies there, or nobody can tell."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def can_list(folder: Path) -> bool:
    """Return whether a folder is not there, or can be listed."""
    try:
        os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return True


def folders_in(folder: Path) -> list[str]:
    """Return the names of the real folders in a folder, none where it is not there or cannot be listed."""
    try:
        with os.scandir(folder) as items:
            return sorted(item.name for item in items if item.is_dir(follow_symlinks=False))
    except OSError:
        return []


def names_in(folder: Path) -> list[str]:
    """Return all names in a folder, none where it is not there or cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def seen_text(path: Path) -> str:
    """Return in words what a folder holds."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        return (error.strerror or "nothing that can be read").lower()
    more = f" and {len(names) - _MOST_SEEN} more" if len(names) > _MOST_SEEN else ""
    return ", ".join(names[:_MOST_SEEN]) + more if names else "nothing"
