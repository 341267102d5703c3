"""Kernel locks with a limit and an owner's name. A process that dies loses them, whatever it left behind.

filelock is imported where a lock is taken: a list of entries takes none, and starts the faster.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from graphkiln.cache.errors import LockTimeout
from graphkiln.cache.store.oserrors import typed_os_errors
from graphkiln.cache.store.root import CacheRoot

if TYPE_CHECKING:
    from filelock import FileLock

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


@contextmanager
def build_lock(root: CacheRoot, name: str, timeout_s: float, note: str = "") -> Iterator[None]:
    """Hold the lock `name` of a cache while the block runs; wait at most `timeout_s` seconds for it.

    Who holds it, and `note` for what, is written beside it, only so that `LockTimeout` can name
    the holder. The lock file stays where it is: it is the lock, not a sign of it, and an old one
    means nothing.
    """
    from filelock import Timeout

    if _NAME.fullmatch(name) is None:
        raise ValueError(f"not a name for a lock: {name!r}")
    root.ensure()
    path = root.locks / f"{name}.lock"
    holder = root.locks / f"{name}.holder"
    lock = _kernel_lock(path)
    with typed_os_errors(root.path):
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout:
            raise LockTimeout(path, _holder_text(holder), timeout_s) from None
    try:
        _write_holder(holder, note)
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


@contextmanager
def owned_lock(path: Path, timeout_s: float = 0) -> Iterator[bool]:
    """Hold a lock whose file lives only as long as its one owner; gives False when somebody holds it.

    The file is unlinked before the lock is let go, so that nobody can take the lock of a name that
    is no more: who waits at the unlinked file is told by the lock itself that it is gone.
    """
    from filelock import Timeout

    lock = _kernel_lock(path)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()


def _kernel_lock(path: Path) -> FileLock:
    from filelock import FileLock

    # Not thread local: whichever thread ends the block lets go. No soft fallback: a lock that is
    # only a file outlives its holder.
    return FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)


def _write_holder(path: Path, note: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "since": now, "note": note})
    with suppress(OSError):
        path.write_text(text, encoding="ascii")


def _holder_text(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        note = f" ({holder['note']})" if holder["note"] else ""
        return f"pid {holder['pid']} on {holder['host']} since {holder['since']}{note}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that left no name"
