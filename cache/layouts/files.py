"""Reading files of a foreign tree: regular files only, no link is followed below the tree's own root."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.store.files import open_inside

# A mega AOT model of a large deployment holds every piece of every range; beyond this it is no such file.
MOST_BYTES = 4 << 30
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
    try:
        with open_inside(folder, name) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > most:
                raise FileFault(name, "size", f"{size} bytes are more than {most}")
            # As much as there is: a buffer is made for what is asked for.
            return stream.read(size)
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
    """Size in bytes and time of change in seconds of one file; `kind` is file, link or other."""

    size: int
    mtime: float
    kind: str = "file"


def walk(folder: Path) -> dict[str, Stat]:
    """Return everything below a folder that is not a real folder, by its path relative to it."""
    found: dict[str, Stat] = {}
    pending = [(str(folder), "")]
    while pending:
        place, inside = pending.pop()
        try:
            with os.scandir(place) as items:
                for item in items:
                    if item.is_dir(follow_symlinks=False):
                        pending.append((item.path, f"{inside}{item.name}/"))
                        continue
                    status = item.stat(follow_symlinks=False)
                    link, file = item.is_symlink(), item.is_file(follow_symlinks=False)
                    kind = "link" if link else "file" if file else "other"
                    found[inside + item.name] = Stat(status.st_size, status.st_mtime, kind)
        except OSError:
            # It went away meanwhile, or may not be read: what is seen counts.
            continue
    return found


def folders_in(folder: Path) -> list[str]:
    """Return the names of the real folders in a folder, none where it is not there."""
    try:
        with os.scandir(folder) as items:
            return sorted(item.name for item in items if item.is_dir(follow_symlinks=False))
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
