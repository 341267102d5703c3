"""What about the place of a cache may be trouble: who can write to it, and what kind of mount it is.

Only told, never a reason to refuse: shared volumes are written by groups on purpose, and a digest
beside a file proves that it is undamaged, not who wrote it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.errors import RootUnusable

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3?|afs|ceph|lustre|glusterfs|9p|gpfs|beegfs|fuse\.(sshfs|s3fs|gcsfuse|glusterfs|ceph.*)"
)


@dataclass(frozen=True)
class Mount:
    """One mounted file system: where, of which kind, with which options."""

    point: str
    kind: str
    options: frozenset[str]


def concerns(path: Path, mounts: Path = _MOUNTS) -> list[str]:
    """Return in words what may be trouble with a cache at `path`, which need not exist; none is normal."""
    real = Path(os.path.realpath(path))
    found = [text for folder in (real, *real.parents) if (text := _writers(folder)) is not None]
    mount = mount_of(real, mounts)
    if mount is not None and _NETWORK.fullmatch(mount.kind):
        found.append(
            f"{mount.point} is a network mount ({mount.kind}): slow, and late to show what was written"
        )
    if mount is not None and "noexec" in mount.options:
        found.append(f"{mount.point} is mounted noexec: compiled code cannot be loaded from it")
    return found


def require_exec(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise `RootUnusable` for a cache on a mount from which compiled code cannot be loaded."""
    mount = mount_of(Path(os.path.realpath(path)), mounts)
    if mount is not None and "noexec" in mount.options:
        reason = f"{mount.point} is mounted noexec, and compiled code has to be loaded from there"
        raise RootUnusable(path, reason, "choose another folder with --cache-root or GRAPHKILN_CACHE_ROOT")


def mount_of(path: Path, mounts: Path = _MOUNTS) -> Mount | None:
    """Return the mount that holds an absolute path, None where the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = [mount for line in lines if (mount := _parsed(line)) and path.is_relative_to(mount.point)]
    # The deepest one; of one point the latest, which covers the earlier ones.
    return max(enumerate(found), key=lambda item: (len(item[1].point), item[0]), default=(0, None))[1]


def _parsed(line: str) -> Mount | None:
    fields, _, rest = line.partition(" - ")
    words, kinds = fields.split(), rest.split()
    if len(words) < 6 or len(kinds) < 1:
        return None
    # Spaces and the like stand as three octal digits.
    point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4])
    return Mount(point, kinds[0], frozenset(words[5].split(",")))


def _writers(folder: Path) -> str | None:
    """Say who else can write to a folder, or replace it."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    if status.st_uid not in (0, os.getuid()):
        return f"{folder} belongs to uid {status.st_uid}, who can replace what is in it"
    # In a sticky folder (/tmp) others can add, but not replace what is not theirs.
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        who = "everybody" if status.st_mode & stat.S_IWOTH else "its group"
        return f"{folder} can be written by {who}"
    return None
