"""Setting things aside: out of the way by one rename, kept whole, with the reason beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphkiln.cache.store.files import flush_folder, write_new
from graphkiln.cache.store.root import CacheRoot

REASON_FILE = "reason.json"


def move_aside(root: CacheRoot, path: Path, short: str, reason: Mapping[str, Any]) -> Path:
    """Move `path` (an entry, a rank, an artifact of the entry `short`) into a quarantine folder of its own.

    Returns that folder: `<short>-<time>`, holding `reason.json` and what was moved, under its own
    name. The reason is there before the thing is. Raises OSError; call it under the publish lock.
    """
    now = datetime.now(UTC)
    os.makedirs(root.quarantine, mode=0o700, exist_ok=True)
    folder = _new_folder(root.quarantine, f"{short}-{now:%Y%m%dT%H%M%SZ}")
    record = {"at": now.isoformat(timespec="seconds"), "moved": path.name, "reason": dict(reason)}
    # A reason may hold anything that a caller found worth telling; its text is enough here.
    write_new(folder / REASON_FILE, json.dumps(record, indent=1, default=str).encode("ascii"))
    os.rename(path, folder / path.name)
    flush_folder(folder)
    flush_folder(path.parent)
    return folder


def _new_folder(parent: Path, name: str) -> Path:
    for attempt in range(1, 1000):
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"no free name like {name} in {parent}")
