"""Choices between configurations on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Run


def test_the_command_line_says_what_is_wrong_and_exits_2(tmp_path: Path, run: Callable[..., Run]) -> None:
    path = tmp_path / "choices.json"
    path.write_text('{"schema": 1, "target": {}, "versions": {}, "kernels": {}, "more": 1}')
    done = run("precompile", "preset:llama", "--choices", str(path))
    assert done.status == 2
    assert f"choices {path}: the file has an unknown field 'more'" in done.err
    done = run("check", "preset:llama", "--tune", str(path), "--emulate", "--target", "h200")
    assert done.status == 2
    assert "--tune captures nothing and needs the device" in done.err


def test_a_folder_is_no_file_to_tune_into(tmp_path: Path, run: Callable[..., Run]) -> None:
    done = run("check", "preset:llama", "--tune", str(tmp_path))
    assert (done.status, done.err.splitlines()[0]) == (2, f"error: --tune {tmp_path} is a folder")
