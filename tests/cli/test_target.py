"""The commands that show and write descriptions of devices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.core.target.description import built_in, find_description
from tests.cli.conftest import Run

Snapshot = Callable[[str], None]


@pytest.mark.parametrize("words", ["target list", "target show h200", "target show l4", "target show h9000"])
def test_target_prints(words: str, run: Callable[..., Run], snapshot: Snapshot) -> None:
    snapshot(str(run(*words.split())))


def test_a_description_is_the_same_as_data(run: Callable[..., Run]) -> None:
    shown = json.loads(run("target", "show", "h200", "--json").out)
    assert {name: shown[name] for name in ("device", "versions", "origin")} == {
        name: value
        for name, value in json.loads(built_in()["h200"].read_text()).items()
        if name in ("device", "versions", "origin")
    }
    listed = json.loads(run("target", "list", "--json").out)
    assert [row["name"] for row in listed["described"]] == sorted(built_in())


def test_a_corrupted_description_is_one_line_before_anything_is_built(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(built_in()["h200"].read_text().replace('"major": 9', '"major": "nine"'))
    done = run("precompile", "preset:llama", "--target", str(file))
    assert done.status == 2
    assert done.err.splitlines()[0] == f"error: target {file}: device.major is 'nine', not a count"


def test_only_a_device_that_is_not_here_is_emulated(run: Callable[..., Run]) -> None:
    for more in ([], ["--target", "cpu"]):
        done = run("check", "preset:llama", "--emulate", *more)
        assert (done.status, "name it: --target h200" in done.err) == (2, True)


def test_a_histogram_that_nothing_would_weigh_is_refused(run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text('{"1": 1}')
    done = run("check", "preset:llama", "--target", "h200", "--emulate", "--traffic", str(file))
    assert (done.status, "--emulate captures nothing" in done.err) == (2, True)


def test_the_description_of_the_device_here_is_printed_as_every_command_prints(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = find_description("h200")
    monkeypatch.setattr("graphkiln.core.target.cuda.describe_live", lambda: described)
    assert json.loads(run("target", "describe").out) == described.as_json()
    told = json.loads(run("target", "describe", "--json").out)
    assert (told["command"], told["device"], told["written"]) == (
        "target describe", described.as_json()["device"], None,
    )  # fmt: skip
    file = tmp_path / "mine.json"
    told = json.loads(run("target", "describe", "--json", "-o", str(file)).out)
    assert told["written"] == str(file)
    assert json.loads(file.read_text()) == described.as_json()


def test_without_weights_there_is_nothing_to_check(run: Callable[..., Run]) -> None:
    done = run("precompile", "preset:llama", "--weights", "none")
    assert (done.status, "add --no-check" in done.err) == (2, True)
    assert run("precompile", "preset:llama", "--weights", "some").status == 2
