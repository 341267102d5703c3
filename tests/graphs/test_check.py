"""The check of a deployment where its device is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphkiln.cache.inspect.capture import capture_of
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.cli.app import main
from graphkiln.core import check as check_module
from graphkiln.core import start as start_module
from graphkiln.core.check import check
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.traffic import Served
from graphkiln.core.plan import make_plan
from graphkiln.core.report import StartReport
from graphkiln.core.start import key
from tests.cache.inspect.made import make_entry
from tests.graphs.made import MadeCapturer
from tests.graphs.test_proof import COMPILATION, toy_runner


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none, on whatever machine the tests run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


pytestmark = pytest.mark.skipif(
    "torch.cuda.is_available()", reason="tells what is missing, and a GPU is here"
)


@pytest.mark.parametrize("device", [None, "cuda"])
def test_without_a_gpu_the_plan_of_a_cuda_device_is_told_and_nothing_is_captured(device: str | None) -> None:
    report = check(Deployment("preset:llama", device=device))
    assert report.target == "cuda"
    assert report.why_not == "no CUDA device is here"
    assert report.capture is None
    assert not report.ok
    assert [(mode.name, len(report.plan.of(mode))) for mode in report.plan.modes] == [
        ("PIECEWISE", 35),
        ("FULL", 19),
    ]
    assert ("target" in [decision.field for decision in report.decisions]) == (device is None)


def test_the_plan_is_the_one_that_a_key_and_a_header_tell() -> None:
    deployment = Deployment("preset:llama", target="cpu")
    config = CompilationConfig(cudagraph_capture_sizes=(1, 8), cudagraph_mode=CUDAGraphMode.PIECEWISE)
    report = check(deployment, config)
    told = key(deployment, config, trace=False).effective["compilation"]["cudagraphs"]
    assert report.cudagraphs == told == make_plan(deployment, config).compilation.cudagraph_plan()
    assert report.why_not == "there are no graphs: a CPU has no CUDA graphs"
    assert report.plan.descriptors == ()


def test_a_described_device_that_is_not_here_is_planned_for_and_named() -> None:
    report = check(Deployment("preset:llama", target="h200"))
    assert (report.target, report.why_not) == ("h200", "this machine is not h200: it needs a CUDA device")
    assert report.plan.descriptors


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (CompilationConfig(enforce_eager=True), "enforce_eager"),
        (CompilationConfig(optimization_level=0), "optimization level 0"),
        (CompilationConfig(cudagraph_mode=CUDAGraphMode.NONE), "cudagraph_mode is NONE"),
        (
            CompilationConfig(splitting_ops=(), cudagraph_mode=CUDAGraphMode.PIECEWISE),
            "splitting_ops is empty",
        ),
        (CompilationConfig(cudagraph_capture_sizes=(3000,)), "no capture size is left"),
    ],
)
def test_a_deployment_without_graphs_says_what_took_them(config: CompilationConfig, why: str) -> None:
    report = check(Deployment("preset:llama"), config)
    assert report.why_not is not None
    assert report.why_not.startswith("there are no graphs: ")
    assert why in report.why_not


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("preset:llama", 4),
        ("preset:llama --target h200", 4),
        ("preset:llama --enforce-eager", 0),
        ("preset:llama -O0", 0),
        ("preset:llama -cc.cudagraph_mode=NONE", 0),
        ("preset:llama --target cpu", 0),
        ("preset:llama --target cpu -cc.cudagraph_mode=FULL", 1),
        ("preset:llama -cc.cudagraph_capture_sizes=[3000]", 1),
        ("tests.graphs.test_check:make", 1),
        ("tests.graphs.test_check:make --enforce-eager", 0),
    ],
)
def test_only_a_device_that_is_not_here_is_a_lack_of_this_machine(
    words: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "-q", *words.split()]) == status
    assert "not captured" in capsys.readouterr().out


def make() -> torch.nn.Module:
    """A model of a factory."""
    return torch.nn.Linear(2, 2)


def test_what_a_model_prints_while_it_is_loaded_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Device(monkeypatch, tmp_path, MadeCapturer())
    load: Any = start_module.load_built

    def printing(*asked: Any, **options: Any) -> Any:
        print("by Python")
        os.write(1, b"by the descriptor\n")
        return load(*asked, **options)

    monkeypatch.setattr(start_module, "load_built", printing)
    assert (
        main(["check", "preset:llama", "--json", "--max-num-seqs", "4", "--cache-root", str(tmp_path)]) == 0
    )
    told = capfd.readouterr()
    assert json.loads(told.out)["command"] == "check"
    assert {"by Python", "by the descriptor"} <= set(told.err.splitlines())


def test_a_traffic_is_told_against_the_plan() -> None:
    report = check(Deployment("preset:llama"), traffic={1: 3.0, 300: 1.0})
    assert report.traffic == Served(steps=4.0, padding=0.0, larger=0.25)


class Device:
    """A made-up device on which the model of a deployment lies, and an entry that it was loaded from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, capturer: MadeCapturer) -> None:
        self.entry = make_entry(Store(CacheRoot(root)))
        start = StartReport("hit", self.entry.key, None, "made-up", self.entry.path, phases=(("load", 0.5),))
        runner = toy_runner(start)
        monkeypatch.setattr(check_module, "_resolved", lambda *asked: ("made-up", COMPILATION, (), None))
        plan = SimpleNamespace(compilation=COMPILATION)
        monkeypatch.setattr("graphkiln.core.start.load_built", lambda *asked, **options: (runner, plan))
        monkeypatch.setattr("graphkiln.core.graphs.proof.open_capturer", lambda *asked, **options: capturer)


def test_with_the_device_every_graph_is_captured_and_the_report_is_kept_with_the_entry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Device(monkeypatch, tmp_path, MadeCapturer())
    report = check(Deployment("toy", max_num_seqs=4), cache_root=tmp_path, traffic={3: 1.0})
    assert report.ok
    assert report.why_not is None
    assert report.cudagraphs["mode"] == report.plan.mode.name == "FULL_DECODE_ONLY"
    assert {row.mode for row in report.dispatch if row.kind == "decode"} == {"FULL"}
    assert report.traffic == Served(1.0, 0.25, 0.0)
    assert [name for name, _ in report.phases if name != "other"] == [
        "resolve", "load", "prepare", "estimate", "capture", "replay", "time",
    ]  # fmt: skip
    assert report.kept == device.entry.path / "reports" / "capture.json"
    assert capture_of(device.entry) == report.capture
    assert device.entry.verify() == []


def test_a_report_that_cannot_be_kept_is_shown_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Device(monkeypatch, tmp_path, MadeCapturer(error={4: 1.0}))
    device.entry.path.rename(tmp_path / "elsewhere")
    report = check(Deployment("toy", max_num_seqs=4), cache_root=tmp_path)
    assert report.capture is not None
    assert not report.ok
    assert report.kept is None
    assert report.notes == ("the report was not kept: the entry cannot be written",)


@pytest.mark.parametrize(("error", "status"), [({}, 0), ({4: 1.0}, 1)])
def test_the_exit_status_says_whether_every_graph_equals_eager(
    error: dict[int, float], status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Device(monkeypatch, tmp_path, MadeCapturer(error=error))
    words = ["check", "preset:llama", "-q", "--json", "--max-num-seqs", "4", "--cache-root", str(tmp_path)]
    assert main(words) == status
