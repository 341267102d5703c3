"""What `check` prints: the plan where no GPU is, and what a capture on a made-up device found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.cache.inspect.capture import is_capture
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.reports import CAPTURE_REPORT, write_report
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cli.show.capture import capture_lines
from graphkiln.cli.show.terminal import Style
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capturer import Way
from graphkiln.core.graphs.examine import examine
from graphkiln.core.graphs.plan import GraphRequest, plan_graphs
from graphkiln.core.graphs.report import capture_document
from graphkiln.core.phases import Phases
from graphkiln.core.report import Silent
from tests.cli.conftest import Run
from tests.cli.test_reading import publish
from tests.graphs.made import MIB, MadeCapturer, step_ms

PLAN = plan_graphs(GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, (1, 2, 4, 8, 16, 32), max_num_seqs=16))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def captured(capturer: MadeCapturer, traffic: dict[int, float] | None = None) -> dict[str, Any]:
    """Returns the document of a check on a made-up device, as it is read back from an entry."""
    found = examine(capturer, PLAN, compiled=True, phases=Phases(Silent()), traffic=traffic)
    document = capture_document(found, PLAN, at="just now", device="Made-up 1")
    again: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return again


def slow_pieces(way: Way, tokens: int) -> float:
    """Large pieces gain nothing, and one token takes as long as two."""
    return 4.2 if way is Way.PIECEWISE and tokens > 8 else step_ms(way, max(tokens, 2))


@pytest.mark.parametrize(
    "words",
    [[], ["--max-num-seqs", "300", "--max-num-batched-tokens", "8192", "-O1"], ["--enforce-eager"]],
    ids=["default", "more_seqs", "eager"],
)
def test_plan(words: list[str], run: Callable[..., Run], snapshot: Callable[[str], None]) -> None:
    snapshot(str(run("check", "preset:llama", "-q", *words)))


def test_a_named_device_that_is_not_here_is_planned_for_too(run: Callable[..., Run]) -> None:
    done = run("check", "preset:llama", "-q", "--device", "cuda")
    assert (done.status, done.err) == (4, "")


def test_plan_as_json_has_every_graph_and_row(run: Callable[..., Run]) -> None:
    done = run(
        "check", "preset:llama", "--json", "-q", "-cc.cudagraph_capture_sizes=[1,8]", "--max-num-seqs", "8"
    )
    found = json.loads(done.out)
    assert (done.status, found["captured"], found["why_not"]) == (4, False, "no CUDA device is here")
    assert found["cudagraphs"]["capture_sizes"] == [1, 8]
    assert [(one["mode"], one["num_tokens"]) for one in found["descriptors"]] == [
        ("PIECEWISE", 8), ("PIECEWISE", 1), ("FULL", 8), ("FULL", 1),
    ]  # fmt: skip
    assert [(row["kind"], row["first"], row["last"], row["mode"]) for row in found["dispatch"]] == [
        ("decode", 1, 1, "FULL"), ("decode", 2, 8, "FULL"),
        ("mixed", 1, 1, "PIECEWISE"), ("mixed", 2, 8, "PIECEWISE"), ("mixed", 9, 2048, "NONE"),
    ]  # fmt: skip


def test_a_bad_traffic_is_one_line(run: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    path.write_text('{"1": "many"}')
    done = run("check", "preset:llama", "--traffic", str(path))
    assert done.status == 2
    assert done.err.startswith(f"error: --traffic: {path}: 'many', the count of 1, is not a number")
    assert len(done.err.splitlines()) == 2


def test_traffic_is_told_against_the_plan(run: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    path.write_text('{"1": 90, "300": 10}')
    done = run("check", "preset:llama", "-q", "--traffic", str(path))
    assert "traffic       100 steps, 10.0% of them larger than any graph; 0.0% of the" in done.out


@pytest.mark.parametrize(
    ("capturer", "traffic"),
    [
        (MadeCapturer(), None),
        (MadeCapturer(ms=slow_pieces), {1: 500.0, 12: 40.0, 64: 5.0}),
        (MadeCapturer(wrong=PLAN.descriptors[1], leaks=8 * MIB, keeps=48 * MIB), None),
        (MadeCapturer(free=130 * MIB), None),
        (MadeCapturer(free=90 * MIB), None),
    ],
    ids=["sound", "never_wins", "unequal", "short", "shorter"],
)
def test_capture_of_a_device_that_is(
    capturer: MadeCapturer, traffic: dict[int, float] | None, snapshot: Callable[[str], None]
) -> None:
    found = captured(capturer, traffic)
    assert is_capture(found)
    snapshot("\n".join(capture_lines(found, Style(80), every=True)) + "\n")


def with_capture(root: Path, capturer: MadeCapturer, **entry: Any) -> Entry:
    """Publishes an entry that has the report of a capture check."""
    made = publish(root, **entry)
    assert write_report(CacheRoot(root), made.path, CAPTURE_REPORT, captured(capturer))
    return made


def test_inspect_shows_the_last_capture(
    run: Callable[..., Run], tmp_path: Path, snapshot: Callable[[str], None]
) -> None:
    entry = with_capture(tmp_path, MadeCapturer(ms=slow_pieces))
    done = run("cache", "inspect", entry.short, "--cache-root", str(tmp_path))
    assert done.status == 0
    snapshot(done.out[done.out.index("device ") :])
    assert "padding costs more at" not in done.out
    every = run("cache", "inspect", entry.short, "--all", "--cache-root", str(tmp_path))
    assert "padding costs more at" in every.out
    found = json.loads(run("cache", "inspect", entry.short, "--json", "--cache-root", str(tmp_path)).out)
    assert found["capture"] == captured(MadeCapturer(ms=slow_pieces))


def test_diff_shows_what_two_captures_differ_in_and_heeds_it_in_no_verdict(
    run: Callable[..., Run], tmp_path: Path, snapshot: Callable[[str], None]
) -> None:
    one = with_capture(tmp_path / "a", MadeCapturer())
    other = with_capture(tmp_path / "b", MadeCapturer(ms=slow_pieces, wrong=PLAN.descriptors[0]))
    words = ("cache", "diff", str(one.path), str(other.path), "--cache-root", str(tmp_path / "a"))
    done = run(*words)
    assert done.status == 0
    snapshot(done.out[done.out.index("captured ") :])
    assert "ms.16.PIECEWISE  2.12  4.2" in run(*words, "--all").out


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.pop("rows"),
        lambda found: found.update(ok="yes"),
        lambda found: found.update(sizes=[1, "2"]),
        lambda found: found["rows"][0].update(ms=[1.0]),
        lambda found: found["rows"][0].pop("unequal"),
        lambda found: found.update(suggestion={"sizes": [1]}),
        lambda found: found.update(shortage=3),
        lambda found: found.update(graphs={"FULL": True}),
    ],
)
def test_a_report_of_another_form_is_left_out(
    damage: Callable[[dict[str, Any]], object], run: Callable[..., Run], tmp_path: Path
) -> None:
    entry = publish(tmp_path)
    found = captured(MadeCapturer())
    damage(found)
    assert write_report(CacheRoot(tmp_path), entry.path, CAPTURE_REPORT, found)
    done = run("cache", "inspect", entry.short, "--cache-root", str(tmp_path))
    assert done.status == 0
    assert "Made-up" not in done.out
