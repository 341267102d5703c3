"""Running the command line inside the test process, and comparing its whole output with a stored one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphkiln.cli.app import main
from tests.layouts.trees import Vllm

SNAPSHOTS = Path(__file__).parent / "snapshots"


@dataclass(frozen=True)
class Run:
    """How one command line ended: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.status}\n--- stdout\n{self.out}--- stderr\n{self.err}"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Gives `run(*words)`, which starts the command line at 80 columns without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def started(*words: str) -> Run:
        status = main(list(words))
        captured = capsys.readouterr()
        return Run(status, captured.out, captured.err)

    return started


@pytest.fixture
def tree(tmp_path: Path) -> Vllm:
    """Gives what one start of a vLLM leaves in a cache root."""
    return Vllm(tmp_path / "root").write()


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Gives `snapshot(text)`, which compares with the stored text; UPDATE_SNAPSHOTS=1 stores it."""
    name = re.sub(r"[^\w-]+", "-", request.node.name.removeprefix("test_")).strip("-")
    path = SNAPSHOTS / f"{name}.txt"

    def compare(text: str) -> None:
        if os.environ.get("UPDATE_SNAPSHOTS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()

    return compare
