"""The processes below this one, as Linux lists them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path


def kill_children(spared: Collection[int] = ()) -> None:
    """Kills every process that this one started, and those that they started: compilers, mostly.

    Those of `spared`, by their ids, and what they started end by themselves once this process lets go.
    """
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything, brackets too.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
    below = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in below} - below - {*spared}:
        below |= found
    for pid in below - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
