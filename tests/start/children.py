"""Runs `started.py` and gives back what it printed; small helpers for folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("started.py")


@dataclass(frozen=True)
class Child:
    """What one start in a process of its own did: its report, or the error that ended it."""

    answer: Mapping[str, Any]

    @property
    def report(self) -> Mapping[str, Any]:
        report: Mapping[str, Any] = self.answer["report"]
        return report

    @property
    def outcome(self) -> str:
        return str(self.report["outcome"])

    @property
    def reasons(self) -> list[str]:
        """The names of what kept the start from a hit."""
        return [str(reason["name"]) for reason in self.report["reasons"]]


def launch(
    function: str,
    model: str,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    python: Path | None = None,
    **given: Any,
) -> subprocess.Popen[str]:
    """Starts `graphkiln.core.start.FUNCTION` in a new process; `given` as `started.py` takes it.

    `python` is another interpreter than this one.
    """
    return subprocess.Popen(
        [str(python or sys.executable), "-P", str(SCRIPT), function, model, json.dumps(given)],
        env=environment() if environ is None else dict(environ),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Child:
    """Waits for a launched process and returns what it did."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return Child(json.loads(out))


def start(function: str, model: str, **given: Any) -> Child:
    """Launches and waits."""
    return finish(launch(function, model, **given))


def other_installation(folder: Path) -> Path:
    """Returns the interpreter of a virtual environment in `folder` with a copy of graphkiln of its own.

    Everything else it finds where this process does.
    """
    code = folder / "code"
    for part in ("cli", "core", "cache"):
        shutil.copytree(ROOT / part, code / "graphkiln" / part)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    places = [str(code), *(place for place in sys.path if place.endswith(("site-packages", "dist-packages")))]
    (packages / "other.pth").write_text("".join(f"{place}\n" for place in places))
    return folder / "venv" / "bin" / "python"


def environment(**changes: str) -> dict[str, str]:
    """Returns what a child needs of this process's environment, and `changes`."""
    needed = ("PATH", "HOME", "CXX", "LD_LIBRARY_PATH", "TMPDIR")
    return {**{name: os.environ[name] for name in needed if name in os.environ}, **changes}


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Returns size, mode and time of last change of everything under a folder, and of itself."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_size, status.st_mode, status.st_mtime_ns)
    return found
