"""Removing what processes that died left in the staging folder. Never an error, at worst a warning."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from graphkiln.cache.store.locks import owned_lock
from graphkiln.cache.store.root import CacheRoot

_LOCK_PREFIX = "draft-"
_DRAFT = re.compile(r"[0-9a-f]{10}-\d+-[0-9a-f]{8}")
# Lone files in staging live for one rename; older than this, their writer is gone.
_FILE_AGE_S = 3600.0

_log = logging.getLogger(__name__)


def draft_lock(root: CacheRoot, name: str) -> Path:
    """Return the lock file that the owner of the staging folder `name` holds as long as it lives."""
    return root.locks / f"{_LOCK_PREFIX}{name}.lock"


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
    """Remove a folder; what cannot be removed (busy on a network file system) is left with a warning."""
    try:
        shutil.rmtree(path)
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
