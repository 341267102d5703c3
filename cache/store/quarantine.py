"""Setting things aside: out of the way by one rename, kept whole, with the reason beside them.

The newest are kept: what is set aside again and again must not fill the disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.store.files import flush_folder, tree_files, write_new
from graphkiln.cache.store.layout import foreign_names
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.trash import discard

REASON_FILE = "reason.json"
FOLDER = re.compile(rf"[0-9a-f]{{{SHORT_DIGITS}}}-(\d{{8}}T\d{{6}}Z)(?:-\d+)?")
MOST_KEPT = 32


def move_aside(
    root: CacheRoot, path: Path, short: str, reason: Mapping[str, Any], beside: Iterable[Path] = ()
) -> Path:
    """Move `path` (an entry, a rank, an artifact of the entry `short`) into a quarantine folder of its own.

    Returns that folder: `<short>-<time>`, holding `reason.json` and what was moved, under its own
    name. The reason is there before the thing is. `beside` goes there after it. Raises OSError; call it
    under the publish lock.
    """
    now = datetime.now(UTC)
    os.makedirs(root.quarantine, mode=0o700, exist_ok=True)
    folder = _new_folder(root.quarantine, f"{short}-{now:%Y%m%dT%H%M%SZ}")
    record = {"at": now.isoformat(timespec="seconds"), "moved": path.name, "reason": dict(reason)}
    # A reason may hold anything that a caller found worth telling; its text is enough here.
    write_new(folder / REASON_FILE, json.dumps(record, indent=1, default=str).encode("ascii"))
    os.rename(path, folder / path.name)
    for other in beside:
        os.makedirs(folder / other.parent.name, mode=0o700, exist_ok=True)
        os.rename(other, folder / other.parent.name / other.name)
    flush_folder(folder)
    flush_folder(path.parent)
    _keep_newest(root, folder)
    return folder


def _keep_newest(root: CacheRoot, just_made: Path) -> None:
    """Move what was set aside longest ago into the trash; what may be anybody's stays."""
    found = ((match[1], name) for name in os.listdir(root.quarantine) if (match := FOLDER.fullmatch(name)))
    for _, name in sorted(found, reverse=True)[MOST_KEPT:]:
        folder = root.quarantine / name
        if folder != just_made and not _holds_foreign(folder):
            discard(root, folder)


def _holds_foreign(folder: Path) -> bool:
    names = [name.split("/", 1) for name in tree_files(folder) if name != REASON_FILE]
    inside = [parts[-1] for parts in names if re.fullmatch(rf"[0-9a-f]{{{SHORT_DIGITS}}}", parts[0])]
    return any(len(parts) < 2 for parts in names) or bool(inside and foreign_names(inside))


def _new_folder(parent: Path, name: str) -> Path:
    for attempt in range(1, 1000):
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"no free name like {name} in {parent}")
