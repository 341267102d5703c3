"""Which names inside an entry's folder are ours. Other programs keep folders of ten hex digits too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_SHA = "[0-9a-f]{64}"
_RANK = r"rank_\d{1,6}_\d{1,6}"
_PREFIX = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_OURS = re.compile(
    rf"entry\.json|factors\.json|state\.json|source/{_SHA}\.py|artifacts/{_SHA}/.+|reports/.+"
    rf"|{_RANK}/manifest\.json|{_RANK}/{_PREFIX}/(?:graph\.py|wiring\.json)",
    re.DOTALL,
)
# Nobody else writes these; a folder without any of them is not one of our entries gone bad.
_TELLING = re.compile(rf"entry\.json|factors\.json|source/{_SHA}\.py|artifacts/{_SHA}/.+", re.DOTALL)


def foreign_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return which files of a folder an entry never holds; "." where nothing tells that it is an entry."""
    there = sorted(names)
    foreign = tuple(name for name in there if _OURS.fullmatch(name) is None)
    return foreign or (() if any(_TELLING.fullmatch(name) for name in there) else (".",))


def could_be_entry(path: Path) -> bool:
    """Say whether a path may lead to an entry, whole or damaged: by its place, or by a name in it."""
    if path.is_symlink() or path.parent.name == "torch_compile_cache":
        return os.path.lexists(path)
    try:
        names = os.listdir(path)
    except PermissionError:
        # That it cannot be read is told as its fault.
        return True
    except OSError:
        return False
    ours = {"entry.json", "factors.json", "state.json", "source", "artifacts"}
    return any(name in ours or name.startswith("rank_") for name in names)
