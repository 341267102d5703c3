"""stdout holds the data and nothing else, whatever a model's code prints while it is built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import os
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

def make():
    print("by Python")
    os.write(1, b"by the descriptor\\n")
    os.system("echo by a child")
    return Model()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status"), [("key", 0), ("explain --trace", 1)])
def test_what_a_factory_prints_goes_to_stderr(words: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "printing_model.py").write_text(MODEL)
    command = [sys.executable, "-m", "graphkiln.cli", *words.split(), "printing_model:make", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "GRAPHKILN_CACHE_ROOT": str(tmp_path / "root")}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == status
    assert json.loads(done.stdout)["command"] == words.split()[0]
    assert {"by Python", "by the descriptor", "by a child"} <= set(done.stderr.splitlines())


CLOSED = ("target list", "target list --json", "cache dir", "--help", "--version")


@pytest.mark.parametrize("words", CLOSED)
def test_a_closed_stdout_is_one_line_and_exit_4(words: str, tmp_path: Path) -> None:
    done = without(">&-", f"--cache-root {tmp_path}/root {words}")
    assert (done.returncode, done.stderr) == (4, "error: stdout: it is closed\n")


def test_a_closed_stdout_is_no_fault_where_there_is_nothing_to_write(tmp_path: Path) -> None:
    done = without(">&-", f"--cache-root {tmp_path}/root cache ls")
    assert (done.returncode, done.stderr) == (0, f"0 entries, 0 B in {tmp_path}/root\n")


def test_a_full_stdout_is_named(tmp_path: Path) -> None:
    for words in ("target list", "--version", "target list --json", "--help", "cache ls -h"):
        done = without(">/dev/full", words)
        assert done.returncode == 4
        assert done.stderr == "error: stdout: No space left on device\nhint: free some space\n"


def test_without_stdout_and_stderr_there_is_the_exit_status_alone() -> None:
    for words, status in (("target list", 4), ("target show none", 2)):
        done = without(">&- 2>&- <&-", words)
        assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_without_stderr_no_talk_goes_to_stdout() -> None:
    done = without("2>&-", "target show none")
    assert (done.returncode, done.stdout) == (2, "")


def without(redirection: str, words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line with its streams redirected as a shell does."""
    line = f'"$0" -m graphkiln.cli {words} {redirection}'
    return subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False)
