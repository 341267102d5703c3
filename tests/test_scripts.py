"""What the scripts say where something that they need is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("quickstart", "test", "check")


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(ROOT / "scripts" / script)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_compiler_that_does_not_work_is_one_line_and_exit_4(script: str) -> None:
    done = run(script, PATH="/usr/local/bin:/usr/bin:/bin", PYTHON=sys.executable, CXX="/bin/false")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(
        "graphkiln needs a C++ compiler for CPU targets, and '/bin/false' does not work"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_python_is_one_line_and_exit_4(script: str, tmp_path: Path) -> None:
    dirname = shutil.which("dirname")
    assert dirname
    (tmp_path / "dirname").symlink_to(dirname)
    done = run(script, PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "graphkiln needs Python 3.11 or newer; install it or set PYTHON to its path\n"
