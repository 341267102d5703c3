"""Removal in two steps: renamed into the trash at once, deleted after a grace period.

Who is reading an entry keeps the files that it has open or mapped, and a removal never shows half an
entry. The time of removal stands in the name, so that copying a cache does not change it, and what has
no such name is not ours to delete.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from graphkiln.cache.store.files import flush_folder, tree_bytes, tree_files
from graphkiln.cache.store.oserrors import typed_os_errors
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.sweep import remove_tree

_NAME = re.compile(r".+-(\d{8}T\d{6}Z)-[0-9a-f]{8}")
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Discarded:
    """One thing in the trash, and when it came there."""

    path: Path
    at: datetime


def discard(root: CacheRoot, path: Path) -> Path:
    """Move a folder of this cache into its trash by one rename; return where it lies now.

    `RootUnusable` where that is not possible. For an entry, call it under its publish lock.
    """
    name = f"{path.name}-{datetime.now(UTC):{_TIME}}-{secrets.token_hex(4)}"
    with typed_os_errors(root.path):
        os.makedirs(root.trash, mode=0o700, exist_ok=True)
        os.rename(path, root.trash / name)
        flush_folder(path.parent)
    return root.trash / name


def discarded(root: CacheRoot) -> list[Discarded]:
    """Return what lies in the trash, oldest first."""
    try:
        names = os.listdir(root.trash)
    except OSError:
        return []
    found = [
        Discarded(root.trash / name, datetime.strptime(match[1], _TIME).replace(tzinfo=UTC))
        for name in names
        if (match := _NAME.fullmatch(name)) and _is_time(match[1])
    ]
    return sorted(found, key=lambda item: (item.at, item.path.name))


def empty_trash(root: CacheRoot, grace_s: float, now: datetime | None = None) -> tuple[int, int]:
    """Delete what has been in the trash for the grace period; return the bytes and files that are gone."""
    moment = now or datetime.now(UTC)
    size = files = 0
    for item in discarded(root):
        if (moment - item.at).total_seconds() >= grace_s:
            held, count = tree_bytes(item.path), sum(1 for _ in tree_files(item.path))
            remove_tree(item.path)
            if not os.path.lexists(item.path):
                size, files = size + held, files + count
    return size, files


def _is_time(text: str) -> bool:
    try:
        datetime.strptime(text, _TIME)
    except ValueError:
        return False
    return True
