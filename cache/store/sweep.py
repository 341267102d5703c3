"""Removing what processes that died left in the staging folder. Never an error, at worst a warning."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphkiln.cache.errors import LockTimeout
from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.store.locks import owned_lock
from graphkiln.cache.store.root import CacheRoot

_LOCK_PREFIX = "draft-"
_DRAFT = re.compile(r"[0-9a-f]{10}-\d+-[0-9a-f]{8}")
# Lone files in staging live for one rename; older than this, their writer is gone.
_FILE_AGE_S = 3600.0

# Nobody wants a private lock but somebody who just tries whether its owner lives.
_OWN_LOCK_S = 30.0

_log = logging.getLogger(__name__)


def draft_lock(root: CacheRoot, name: str) -> Path:
    """Return the lock file that the owner of the staging folder `name` holds as long as it lives."""
    return root.locks / f"{_LOCK_PREFIX}{name}.lock"


def staging_name(key: str) -> str:
    """Return a new name for a staging folder of a key."""
    return f"{key[:SHORT_DIGITS]}-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def own_folder(root: CacheRoot, name: str) -> Iterator[Path]:
    """Make the staging folder `name`, which nobody sweeps while the block runs; it is removed after it.

    OSError, and `LockTimeout` where a sweep holds the lock of that very name for too long.
    """
    lock, place = draft_lock(root, name), root.staging / name
    # Before the folder is there: whoever finds a folder whose lock is free may remove it.
    with owned_lock(lock, _OWN_LOCK_S) as ours:
        if not ours:
            raise LockTimeout(lock, "a process that looks for dead drafts", _OWN_LOCK_S)
        try:
            os.mkdir(place, 0o700)
            yield place
        finally:
            remove_tree(place)


def remove_dead_drafts(root: CacheRoot) -> None:
    """Remove staging folders whose owner's kernel lock is free, and locks without a folder."""
    try:
        names = {item.name for item in os.scandir(root.staging) if item.is_dir(follow_symlinks=False)}
        names |= {
            path.name.removeprefix(_LOCK_PREFIX).removesuffix(".lock")
            for path in root.locks.glob(f"{_LOCK_PREFIX}*.lock")
        }
        for name in sorted(names):
            with owned_lock(draft_lock(root, name)) as dead:
                if dead:
                    remove_tree(root.staging / name)
        _remove_old_files(root.staging)
    except OSError as error:
        _log.warning("could not look for dead drafts in %s: %s", root.staging, error)


def dead_drafts(root: CacheRoot) -> list[Path]:
    """Return the staging folders whose owner is gone; holds no lock longer than to see that it is free."""
    try:
        names = sorted(item.name for item in os.scandir(root.staging) if item.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [
        root.staging / name for name in names if _DRAFT.fullmatch(name) and _is_free(draft_lock(root, name))
    ]


def remove_tree(path: Path) -> None:
    """Remove a folder, or what lies in its place; what cannot be removed is left with a warning.

    On a network file system it may be busy. A link is removed, never what it leads to.
    """
    try:
        shutil.rmtree(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("could not remove %s: %s", path, error)


def _remove_old_files(staging: Path) -> None:
    oldest = time.time() - _FILE_AGE_S
    for item in os.scandir(staging):
        with suppress(FileNotFoundError):
            if item.is_file(follow_symlinks=False) and item.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(item.path)


def _is_free(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
