"""CUDA graphs are captured before an entry is published; the device is made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.inspect.capture import capture_of
from graphkiln.cache.store.entries import Entry
from graphkiln.cli.show.start import start_json, start_lines
from graphkiln.cli.show.terminal import Style
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs import proof
from graphkiln.core.graphs.errors import ReplayDiffers
from graphkiln.core.proving import Prover
from graphkiln.core.start import precompile
from tests.graphs.made import MadeCapturer
from tests.start.conftest import CompiledToy

TOY = Deployment("toy_model:make")


def _on_a_made_up_device(monkeypatch: pytest.MonkeyPatch, capturer: MadeCapturer) -> None:
    real = proof.prove_graphs

    def prove(runner: Any, compilation: Any, phases: Any) -> Any:
        wanted = replace(compilation, cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, capture_sizes=(1, 2))
        # Nobody knows the steps of a factory's model; this one is to have some.
        runner.served = replace(runner.served, vocab_size=8)
        return real(runner, wanted, phases, capturer=capturer)

    monkeypatch.setattr(proof, "prove_graphs", prove)
    monkeypatch.setattr(Prover, "applies", lambda self, served: True)


def test_graphs_that_equal_eager_are_told_and_kept_with_the_entry(
    toy: CompiledToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(toy.code))
    capturer = MadeCapturer()
    _on_a_made_up_device(monkeypatch, capturer)
    report = precompile(TOY, cache_root=tmp_path / "root")
    assert (report.outcome, report.key) == ("compiled", toy.child.report["key"])
    # The toy's part is compiled, so that it has pieces.
    assert [(one.mode.name, one.num_tokens) for one in capturer.order[4:]] == [
        ("PIECEWISE", 2), ("PIECEWISE", 1), ("FULL", 2), ("FULL", 1),
    ]  # fmt: skip
    assert capturer.taken == 0
    assert report.entry_path is not None
    entry = Entry(report.entry_path)
    assert entry.verify() == []
    assert capture_of(entry) == report.capture == start_json(report, "toy")["capture"]
    assert "2 PIECEWISE and 2 FULL in" in "\n".join(start_lines(report, "toy", Style(80)))
    assert {"estimate", "capture", "replay", "time"} <= {name for name, _ in report.phases}
    assert json.loads(json.dumps(start_json(report, "toy"), default=str))["capture"]["ok"] is True


def test_a_graph_that_differs_from_eager_publishes_nothing(
    toy: CompiledToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(toy.code))
    _on_a_made_up_device(monkeypatch, MadeCapturer(error={2: 0.5}))
    with pytest.raises(ReplayDiffers, match=r"check failed at 2 tokens: the \w+ graph and eager"):
        precompile(TOY, cache_root=tmp_path / "root")
    assert list((tmp_path / "root" / "torch_compile_cache").iterdir()) == []
