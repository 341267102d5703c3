"""Choosing between configurations: by all calls together, each kernel once a token count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from graphkiln.core.choices import Choice, Choices, read_choices
from graphkiln.core.compile.sealed_triton import SealedTriton
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice
from graphkiln.core.tuning import _Timed, _timing, _write, tune


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
    for _ in range(2):
        _timing(sealed(kernel), {"k"}, timed)(7, stream=0)
    assert timed["k"].best() == 1
    assert len(timed["k"].slower) == 2


def test_a_kernel_of_many_layers_is_timed_once_a_count_and_launched_every_time() -> None:
    first, second = Kernel("k", {0: 2.0, 1: 1.0}), Kernel("k")
    waiting, timed = {"k"}, dict[str, _Timed]()
    for kernel in (first, second, first):
        _timing(sealed(kernel), waiting, timed)(7, stream=0)
    assert (first.launched, second.launched) == ([0, 0], [0])
    assert len(timed["k"].slower) == 1


def test_equals_are_settled_by_their_order() -> None:
    timed = _Timed(sealed(Kernel("k")), [{0: 1.5, 1: 1.0, 2: 1.0}])
    assert timed.best() == 1


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    choices = Choices("f", {"gpu": "x"}, {"torch": "2", "triton": "3"}, {"a": Choice("k", {"XBLOCK": 64})})
    path = tmp_path / "choices.json"
    _write(path, choices)
    assert json.loads(path.read_text())["kernels"] == {"a": {"config": {"XBLOCK": 64}, "name": "k"}}
    assert read_choices(path).digest == choices.digest
    assert [one.name for one in tmp_path.iterdir()] == ["choices.json"]


def test_where_the_device_is_not_nothing_is_timed(tmp_path: Path) -> None:
    with pytest.raises(NoDevice, match="kernels for a CPU have one configuration"):
        tune(Deployment("preset:llama", target="cpu"), None, tmp_path / "c.json")
    with pytest.raises(NoDevice, match=r"nothing can be timed: it needs a CUDA device"):
        tune(Deployment("preset:llama", target="h200"), None, tmp_path / "c.json")
