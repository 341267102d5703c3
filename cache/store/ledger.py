"""The ledger of starts: one JSON line each, appended under a lock, capped, read tolerantly."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import CacheError
from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.cache.store.files import write_new
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.root import CacheRoot

CAP_BYTES = 2 << 20
# A start must not wait for its own note.
_LOCK_WAIT_S = 2.0
_MAX_LINE_BYTES = 64 << 10


def append_start(root: CacheRoot, line: Mapping[str, Any], cap_bytes: int = CAP_BYTES) -> bool:
    """Append one start, `at` (UTC) added; False where that is not possible, which is never an error.

    Does not create the cache: a start that stored nothing leaves nothing.
    """
    if not root.path.is_dir():
        return False
    try:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        data = canonical_json({"at": now, **line}, "start") + b"\n"
        if len(data) > _MAX_LINE_BYTES:
            return False
        with build_lock(root, "ledger", _LOCK_WAIT_S, "noting a start"):
            _append(root, data, cap_bytes)
    except (CacheError, OSError):
        return False
    return True


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Return the starts in the ledger, oldest first; lines that cannot be read are left out."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    return [start for line in data.splitlines() if (start := _start(line)) is not None]


def _append(root: CacheRoot, data: bytes, cap_bytes: int) -> None:
    there = root.ledger.read_bytes() if root.ledger.exists() else b""
    # A writer that died in the middle of a line must not take the next one with it.
    if there and not there.endswith(b"\n"):
        data = b"\n" + data
    if len(there) + len(data) <= cap_bytes:
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(root.ledger, flags, 0o600), "ab", buffering=0) as stream:
            stream.write(data)
        return
    _, _, newer = there[-(cap_bytes // 2) :].partition(b"\n")
    draft = root.staging / f"ledger-{os.getpid()}"
    draft.unlink(missing_ok=True)
    try:
        write_new(draft, newer + data)
        os.replace(draft, root.ledger)
    finally:
        draft.unlink(missing_ok=True)


def _start(line: bytes) -> dict[str, Any] | None:
    try:
        start = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return start if isinstance(start, dict) else None
