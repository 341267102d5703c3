"""What a start really did, counted where it happens: frames converted, child processes started."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

_SPAWNS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}
)
_spawned = 0
_watching = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    global _spawned
    if event in _SPAWNS:
        _spawned += 1


@dataclass(frozen=True)
class Evidence:
    """A moment's counts; `since` gives what happened after it."""

    frames: int
    spawned: int

    def since(self) -> dict[str, int]:
        """Returns frames that Dynamo converted and child processes that were started after this moment.

        One child may count more than once: Popen itself spawns.
        """
        now = begin()
        return {"frames_converted": now.frames - self.frames, "child_processes": now.spawned - self.spawned}


def begin() -> Evidence:
    """Returns the counts of this moment; watching for children starts with the first call."""
    global _watching
    if not _watching:
        # An audit hook cannot be removed: one for the whole process.
        sys.addaudithook(_hook)
        _watching = True
    # Dynamo's own number of the next frame; where it was never imported, nothing was converted.
    convert = sys.modules.get("torch._dynamo.convert_frame")
    return Evidence(int(convert.FRAME_COUNTER) if convert is not None else 0, _spawned)
