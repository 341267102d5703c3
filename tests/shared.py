"""What is made once for a whole run of the suite, whichever of its processes needs it first."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

# What `make` returned lies beside its folder, and says that it came to its end.
_MADE = "made.json"


def shared_folder(temporary: pytest.TempPathFactory) -> Path:
    """Returns a folder of this run of the suite, the same in all of its processes."""
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def made_once(
    temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], Mapping[str, Any]]
) -> tuple[Path, Mapping[str, Any]]:
    """Returns a copy, this process's own, of the folder that `make` filled, and the JSON that it returned."""
    place = shared_folder(temporary) / name
    with FileLock(f"{place}.lock"):
        if not (place / _MADE).exists():
            shutil.rmtree(place, ignore_errors=True)
            (place / "folder").mkdir(parents=True)
            (place / _MADE).write_text(json.dumps(make(place / "folder")))
        answer = json.loads((place / _MADE).read_text())
        copy = temporary.mktemp(name) / "copy"
        shutil.copytree(place / "folder", copy)
    return copy, answer
