"""What the files of a folder take, each counted by itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of everything in a folder that is not a real folder, by its path relative to it."""
    found: dict[str, int] = {}
    pending = [(str(folder), "")]
    while pending:
        place, inside = pending.pop()
        try:
            with os.scandir(place) as items:
                for item in items:
                    name = inside + item.name
                    if item.is_dir(follow_symlinks=False):
                        pending.append((item.path, f"{name}/"))
                        continue
                    # One that went away meanwhile is no reason to count nothing of what lies beside it.
                    with suppress(FileNotFoundError):
                        found[name] = item.stat(follow_symlinks=False).st_size
        except OSError:
            # It went away meanwhile, or may not be read: what is seen counts.
            continue
    return found
