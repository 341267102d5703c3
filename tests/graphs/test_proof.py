"""The capture check of a loaded model, its device made up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from graphkiln.cache.inspect.capture import is_capture
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.config.resolve import resolve
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError
from graphkiln.core.graphs.errors import ReplayDiffers
from graphkiln.core.graphs.proof import prove_graphs
from graphkiln.core.models.served import ServedModel, example_inputs
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.phases import Phases
from graphkiln.core.report import Silent, StartReport
from graphkiln.core.runner import Runner
from tests.config.oracle import facts
from tests.graphs.made import MIB, MadeCapturer

COMPILATION = resolve(CompilationConfig(cudagraph_capture_sizes=(1, 2, 4)), facts(max_num_seqs=4)).effective


def toy_runner(report: StartReport | None, *layers: AttentionLayer) -> Runner:
    """A model on a CPU: its attention can be in no graph, and it has no compiled part."""
    served = ServedModel(
        backbone=nn.Identity(),
        compute_logits=nn.Identity(),
        example_inputs=example_inputs(16, 64, torch.device("cpu")),
        layers=layers,
        vocab_size=16,
        max_model_len=64,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return Runner(served, served.backbone.forward, report, Deployment("toy", max_num_seqs=4))


ATTENTION = AttentionLayer("layers.0.attn", 1, 1, 8, 8, 1.0)


def test_a_check_lowers_the_mode_by_the_attention_of_the_model_and_records_it() -> None:
    found = prove_graphs(toy_runner(None), COMPILATION, Phases(Silent()), capturer=MadeCapturer())
    # Without a compiled part there are no pieces, without attention nothing else is in the way.
    assert found.compilation.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    assert [(one.asked, one.got) for one in found.decisions] == [("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")]
    assert found.document is not None
    assert is_capture(found.document)
    assert (found.document["mode"], found.document["graphs"]) == ("FULL_DECODE_ONLY", {"FULL": 3})
    found.require_equal()


def test_a_model_whose_attention_no_graph_holds_has_none() -> None:
    found = prove_graphs(toy_runner(None, ATTENTION), COMPILATION, Phases(Silent()), capturer=MadeCapturer())
    assert found.document is None
    assert found.compilation.cudagraph_mode is CUDAGraphMode.NONE
    assert "attention backend torch is captured for no batch" in found.decisions[0].reason


def test_full_with_such_attention_is_refused() -> None:
    full = replace(COMPILATION, cudagraph_mode=CUDAGraphMode.FULL)
    with pytest.raises(CompileError, match="FULL: attention backend torch"):
        prove_graphs(toy_runner(None, ATTENTION), full, Phases(Silent()), capturer=MadeCapturer())


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_the_replay_that_is_farthest_from_eager_is_named(error: float) -> None:
    capturer = MadeCapturer(error={4: 0.3, 2: error})
    found = prove_graphs(toy_runner(None), COMPILATION, Phases(Silent()), capturer=capturer)
    assert found.document is not None
    assert is_capture(found.document)
    assert not found.document["ok"]
    with pytest.raises(ReplayDiffers, match="at 2 tokens: the FULL graph and eager differ by"):
        found.require_equal()


def test_too_little_memory_is_no_difference() -> None:
    found = prove_graphs(
        toy_runner(None), COMPILATION, Phases(Silent()), capturer=MadeCapturer(free=70 * MIB)
    )
    found.require_equal()
    assert found.document is not None
    assert found.document["shortage"]["sizes"]
    assert not found.document["ok"]
