"""Choosing between configurations: by all calls together, each kernel once a token count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from graphkiln.cli.show.terminal import Style
from graphkiln.cli.show.tuned import tuned_json, tuned_lines
from graphkiln.core import start, tuning
from graphkiln.core.choices import Choice, Choices, read_choices
from graphkiln.core.compile.sealed_triton import SealedTriton
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice, NothingToTune
from graphkiln.core.target import named
from graphkiln.core.tuning import Tuned, _counts, _Timed, _timing, _write, tune
from tests.cache.inspect.made import cache_at, make_entry


class Kernel:
    """Stands for a sealed kernel whose configurations take the given milliseconds, call by call."""

    def __init__(self, name: str, *times: dict[int, float]) -> None:
        self.name, self.title, self.configs = name, name, [{"XBLOCK": 64}, {"XBLOCK": 128}, {"XBLOCK": 256}]
        self._times = list(times)
        self.launched: list[int] = []

    def timed(self, args: Any, stream: int) -> dict[int, float]:
        return self._times.pop(0)

    def launch(self, index: int, args: Any, stream: int) -> None:
        self.launched.append(index)


def sealed(kernel: Kernel) -> SealedTriton:
    return cast(SealedTriton, cast(Any, kernel))


def test_what_loses_least_over_all_calls_is_chosen() -> None:
    # The first is best at one size and very slow at the other; the third spills and is left out of one call.
    kernel = Kernel("k", {0: 1.0, 1: 1.1, 2: 1.0}, {0: 30.0, 1: 11.0})
    timed: dict[str, _Timed] = {}
    for count in (1, 2048):
        _timing(sealed(kernel), count, {"k"}, timed)(7, stream=0)
    assert timed["k"].best() == 1
    assert list(timed["k"].slower) == [1, 2048]


def test_a_kernel_of_many_layers_is_timed_once_a_count_and_launched_every_time() -> None:
    first, second = Kernel("k", {0: 2.0, 1: 1.0}), Kernel("k")
    waiting, timed = {"k"}, dict[str, _Timed]()
    for kernel in (first, second, first):
        _timing(sealed(kernel), 64, waiting, timed)(7, stream=0)
    assert (first.launched, second.launched) == ([0, 0], [0])
    assert list(timed["k"].slower) == [64]


def test_equals_are_settled_by_their_order() -> None:
    timed = _Timed(sealed(Kernel("k")), {2: {0: 1.5, 1: 1.0, 2: 1.0}})
    assert timed.best() == 1


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    choices = Choices("f", {"gpu": "x"}, {"torch": "2", "triton": "3"}, {"a": Choice("k", {"XBLOCK": 64})})
    path = tmp_path / "choices.json"
    _write(path, choices)
    assert json.loads(path.read_text())["kernels"] == {"a": {"config": {"XBLOCK": 64}, "name": "k"}}
    assert read_choices(path).digest == choices.digest
    assert [one.name for one in tmp_path.iterdir()] == ["choices.json"]


def part(*ranges: tuple[int, int]) -> Any:
    return SimpleNamespace(ranges=ranges, door=SimpleNamespace(smallest=2, largest=ranges[-1][1]))


def test_a_call_is_made_in_every_range_of_every_part() -> None:
    counts = _counts(
        [part((1024, 1024), (600, 600), (2, 512), (513, 1024)), part((2, 40), (41, 2**31 - 1))], 1024
    )
    assert counts == (2, 7, 40, 41, 64, 256, 512, 600, 1023, 1024)


def test_a_kernel_that_no_call_ran_is_named(tmp_path: Path) -> None:
    choices = Choices("f", {}, {}, {})
    report = SimpleNamespace(target="cuda", outcome="hit", entry_path=None)
    found = Tuned(choices, {}, {}, (2,), cast(Any, report), tmp_path / "c.json", {"a" * 64: "twice"})
    lines = tuned_lines(found, "llama", Style())
    assert lines[-1].split() == ["not", "timed", "twice:", "no", "call", "ran", "it"]
    assert tuned_json(found, "llama")["untimed"] == {"a" * 64: "twice"}


def test_kernels_of_one_name_are_told_apart_by_the_calls_they_served(tmp_path: Path) -> None:
    kernels = {"a" * 64: Choice("add", {"XBLOCK": 512}), "b" * 64: Choice("add", {"XBLOCK": 64})}
    report = SimpleNamespace(target="cuda", outcome="hit", entry_path=None)
    timed = {"a" * 64: (512,), "b" * 64: (1, 2, 7)}
    configs = dict.fromkeys(kernels, 2)
    choices = Choices("f", {}, {}, kernels)
    found = Tuned(choices, timed, configs, (1, 2, 7, 512), cast(Any, report), tmp_path / "c.json", {})
    rows = [line.split() for line in tuned_lines(found, "llama", Style())[-2:]]
    assert rows == [["add", "2", "1,", "2,", "7", "XBLOCK", "64"], ["add", "2", "512", "XBLOCK", "512"]]
    assert tuned_json(found, "llama")["kernels"]["b" * 64]["tokens"] == [1, 2, 7]


def test_where_the_device_is_not_nothing_is_timed(tmp_path: Path) -> None:
    with pytest.raises(NoDevice, match="kernels for a CPU have one configuration"):
        tune(Deployment("preset:llama", target="cpu"), None, tmp_path / "c.json")
    with pytest.raises(NoDevice, match=r"nothing can be timed: it needs a CUDA device"):
        tune(Deployment("preset:llama", target="h200"), None, tmp_path / "c.json")


@pytest.mark.parametrize(
    ("parts", "header", "said"),
    [
        ((), {}, "tune llama: its forward is not compiled"),
        (("backbone",), {"choices": "mine"}, r"tune llama: entry \w{10} was built with --choices"),
    ],
    ids=["eager", "frozen"],
)
def test_where_nothing_is_left_to_choose_the_file_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: tuple[str, ...],
    header: Mapping[str, Any],
    said: str,
) -> None:
    entry = make_entry(cache_at(tmp_path / "cache"), header=header)
    report = SimpleNamespace(entry_path=entry.path if parts else None)
    runner = SimpleNamespace(plain_forward=None, report=report)
    here = SimpleNamespace(kind="cuda", missing_here=tuple, name="cuda", as_factor=dict)
    door = SimpleNamespace(smallest=1, largest=8)
    plan = SimpleNamespace(label="llama", ranges=lambda smallest: [], largest=8)
    monkeypatch.setattr(named, "find_target", lambda name: here)
    monkeypatch.setattr(start, "load_built", lambda *asked, **where: (runner, plan))
    monkeypatch.setattr(tuning, "compiled_parts", lambda forward: [SimpleNamespace(door=door) for _ in parts])
    monkeypatch.setattr(tuning, "_counts", lambda *given: ())
    monkeypatch.setattr(tuning, "_several", lambda parts: [], raising=False)
    monkeypatch.setattr(tuning, "_timed", lambda *given: {})
    path = tmp_path / "choices.json"
    path.write_text("made before")
    with pytest.raises(NothingToTune, match=said):
        tune(Deployment("preset:llama", target="cuda"), None, path)
    assert path.read_text() == "made before"
