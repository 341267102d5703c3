"""Reports that are added to an entry after it was published: best effort, in no digest, never trusted."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import CacheError
from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.cache.store.files import open_inside, write_new
from graphkiln.cache.store.root import CacheRoot

REPORTS_FOLDER = "reports"
CAPTURE_REPORT = "capture.json"
_MAX_BYTES = 16 << 20


def write_report(root: CacheRoot, entry: Path, name: str, body: Mapping[str, Any]) -> bool:
    """Write a report of the entry at `entry`, in place of one that has its name.

    False where that is not possible, on a read-only root for example, which is never an error.
    """
    draft = root.staging / f"report-{os.getpid()}-{secrets.token_hex(4)}"
    steps = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        root.ensure()
        write_new(draft, json.dumps(body, sort_keys=True, allow_nan=False).encode("ascii"))
        # An entry that was removed meanwhile has no folder to make this one in.
        with suppress(FileExistsError):
            os.mkdir(entry / REPORTS_FOLDER, 0o700)
        folder = os.open(entry / REPORTS_FOLDER, steps)
        try:
            os.rename(draft, name, dst_dir_fd=folder)
        finally:
            os.close(folder)
    except (OSError, CacheError):
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return False
    return True


def read_report(entry: Path, name: str) -> dict[str, Any] | None:
    """Return a report of the entry at `entry`; None where there is none that can be read."""
    try:
        with open_inside(entry, f"{REPORTS_FOLDER}/{name}") as stream:
            return parse_object(stream.read(_MAX_BYTES))
    except (OSError, DocumentFault):
        return None
