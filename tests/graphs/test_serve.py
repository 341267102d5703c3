"""Graphs before a model serves: captured all together, on a device that is made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.config.resolve import resolve
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step
from graphkiln.core.graphs.serve import serve_graphs
from graphkiln.core.models.load import build
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.ops.backends import AttentionBackend
from graphkiln.core.ops.plain import PlainTorch
from graphkiln.core.ops.support import AttentionSupport
from graphkiln.core.phases import Phases
from graphkiln.core.report import PieceCounts, Silent, StartReport
from graphkiln.core.runner import Runner
from tests.config.oracle import facts
from tests.graphs.made import MIB, MadeCapturer
from tests.graphs.recording import FakeRecorder

DEPLOYMENT = Deployment("preset:llama", max_num_seqs=4, max_num_batched_tokens=64)
COMPILATION = resolve(
    CompilationConfig(cudagraph_capture_sizes=(1, 2, 4), cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY),
    facts(max_num_seqs=4),
).effective


class Capturable(PlainTorch):
    """Says of itself that graphs hold it."""

    name = "capturable"
    support = AttentionSupport.ALWAYS


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return build(identify(DEPLOYMENT), DEPLOYMENT)


def runner_of(served: ServedModel, backend: AttentionBackend | None = None) -> Runner:
    report = StartReport(
        "hit", None, None, "h200", None, (), PieceCounts(0, 0, 0, 0), 0, (), {}, (), None, {}
    )
    return Runner(served, served.backbone.forward, report, DEPLOYMENT, backend=backend or Capturable())


def served_by(runner: Runner, requests: int) -> BatchDescriptor:
    assert runner.graphs is not None
    return runner.graphs.dispatch(Step(requests, requests, 1, 1))


def test_every_planned_graph_serves_once_all_were_captured(served: ServedModel) -> None:
    runner = runner_of(served)
    runner.use_graphs(FakeRecorder())
    capturer = MadeCapturer()
    serve_graphs(runner, COMPILATION, Phases(Silent()), capturer)
    assert [one.num_tokens for one in capturer.order] == [4, 2, 1]
    assert served_by(runner, 3) == BatchDescriptor(CUDAGraphMode.FULL, 4, 4, 1)
    assert runner.report is not None
    assert runner.report.notes == ()
    assert [phase for phase, _ in runner.report.phases if phase != "other"] == ["graphs"]


def test_without_memory_for_all_of_them_no_graph_serves_and_the_report_says_so(served: ServedModel) -> None:
    runner = runner_of(served)
    runner.use_graphs(FakeRecorder())
    capturer = MadeCapturer(free=73 * MIB)
    serve_graphs(runner, COMPILATION, Phases(Silent()), capturer)
    assert served_by(runner, 3).mode is CUDAGraphMode.NONE
    assert capturer.held == {}
    assert runner.report is not None
    (note,) = runner.report.notes
    assert note.startswith("steps run without CUDA graphs: no memory is left for the FULL graph of 2 tokens")
    assert note.endswith("sizes that fit: 1")


def test_what_attention_takes_away_is_a_decision_of_the_start(served: ServedModel) -> None:
    runner = runner_of(served, PlainTorch())
    serve_graphs(runner, COMPILATION, Phases(Silent()), MadeCapturer())
    assert runner.report is not None
    assert [one.got for one in runner.report.decisions] == ["PIECEWISE", "NONE"]
    assert runner.graphs is None


def test_a_model_of_a_factory_has_no_graphs(served: ServedModel) -> None:
    runner = runner_of(replace(served, vocab_size=None))
    capturer: Any = None
    serve_graphs(runner, COMPILATION, Phases(Silent()), capturer)
    assert runner.report is not None
    assert "takes inputs of its own" in runner.report.decisions[0].reason
