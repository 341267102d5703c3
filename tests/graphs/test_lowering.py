"""Which CUDA graph mode attention leaves possible, and what is recorded about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode
from graphkiln.core.config.resolve import resolve
from graphkiln.core.config.trail import Trail
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError
from graphkiln.core.graphs.lowering import CacheLayout, lowered, lowered_plan
from graphkiln.core.ops.support import AttentionSupport
from tests.config.oracle import facts

ALWAYS, BATCH = AttentionSupport.ALWAYS, AttentionSupport.UNIFORM_BATCH
TOKEN, NEVER = AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE, AttentionSupport.NEVER
NAMES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

SPLIT = resolve(CompilationConfig(), facts()).effective
WHOLE = resolve(CompilationConfig(splitting_ops=()), facts()).effective
EAGER = resolve(CompilationConfig(mode=CompilationMode.NONE), facts()).effective
BREAKABLE = resolve(CompilationConfig(), facts(breakable=True)).effective


def _lowered(
    mode: str,
    support: AttentionSupport,
    compilation: EffectiveConfig = SPLIT,
    *,
    decode_length: int = 1,
    has_pieces: bool = True,
) -> str:
    trail = Trail()
    layout = CacheLayout({"toy": support, "other": ALWAYS}, decode_length, 8, has_pieces)
    got = lowered(CUDAGraphMode[mode], compilation, layout, trail).name
    if got == mode:
        assert trail.decisions == ()
    else:
        assert (trail.decisions[0].asked, trail.decisions[-1].got) == (mode, got)
        assert all(decision.field == "cudagraph_mode" and decision.reason for decision in trail.decisions)
    return got


@pytest.mark.parametrize("mode", NAMES)
@pytest.mark.parametrize("compilation", [SPLIT, WHOLE, BREAKABLE], ids=["split", "whole", "breakable"])
def test_attention_that_is_always_captured_lowers_nothing(mode: str, compilation: EffectiveConfig) -> None:
    assert _lowered(mode, ALWAYS, compilation) == mode
    assert _lowered(mode, ALWAYS, compilation, decode_length=3) == mode


@pytest.mark.parametrize("support", [BATCH, TOKEN])
@pytest.mark.parametrize(
    ("compilation", "got"),
    [
        (SPLIT, "FULL_AND_PIECEWISE"),
        (WHOLE, "FULL_DECODE_ONLY"),
        (EAGER, "FULL_DECODE_ONLY"),
        (BREAKABLE, "FULL_AND_PIECEWISE"),
    ],
    ids=["split", "whole", "eager", "breakable"],
)
def test_full_for_mixed_batches_needs_attention_that_is_always_captured(
    support: AttentionSupport, compilation: EffectiveConfig, got: str
) -> None:
    assert _lowered("FULL", support, compilation) == got


@pytest.mark.parametrize("mode", ["FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize(
    ("compilation", "got"),
    [(SPLIT, "PIECEWISE"), (WHOLE, "NONE"), (EAGER, "NONE"), (BREAKABLE, "PIECEWISE")],
    ids=["split", "whole", "eager", "breakable"],
)
def test_without_attention_in_a_graph_decode_falls_back_to_pieces(
    mode: str, compilation: EffectiveConfig, got: str
) -> None:
    assert _lowered(mode, NEVER, compilation) == got


def test_inductor_partition_cuts_attention_out_as_well() -> None:
    assert (
        _lowered("FULL_DECODE_ONLY", NEVER, replace(WHOLE, use_inductor_graph_partition=True)) == "PIECEWISE"
    )


@pytest.mark.parametrize(
    ("support", "length", "compilation", "got"),
    [
        (TOKEN, 1, SPLIT, "FULL_AND_PIECEWISE"),
        (TOKEN, 3, SPLIT, "PIECEWISE"),
        (TOKEN, 3, WHOLE, "NONE"),
        (BATCH, 3, SPLIT, "FULL_AND_PIECEWISE"),
    ],
)
def test_drafts_make_a_step_of_decode_longer_than_one_token(
    support: AttentionSupport, length: int, compilation: EffectiveConfig, got: str
) -> None:
    assert _lowered("FULL_AND_PIECEWISE", support, compilation, decode_length=length) == got


def test_every_step_down_of_several_is_recorded() -> None:
    trail = Trail()
    layout = CacheLayout({"toy": TOKEN}, decode_length=3, max_num_seqs=8)
    assert lowered(CUDAGraphMode.FULL, SPLIT, layout, trail) is CUDAGraphMode.PIECEWISE
    assert [(one.asked, one.got) for one in trail.decisions] == [
        ("FULL", "FULL_AND_PIECEWISE"),
        ("FULL_AND_PIECEWISE", "PIECEWISE"),
    ]
    assert "attention backend toy" in trail.decisions[0].reason
    assert "3 for each" in trail.decisions[1].reason


@pytest.mark.parametrize(
    ("mode", "got"), [("PIECEWISE", "NONE"), ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"), ("FULL", "FULL")]
)
def test_pieces_need_a_compiled_part_or_breaks(mode: str, got: str) -> None:
    assert _lowered(mode, ALWAYS, has_pieces=False) == got
    assert _lowered(mode, ALWAYS, BREAKABLE, has_pieces=False) == mode


def test_full_with_attention_that_is_never_captured_is_refused() -> None:
    with pytest.raises(CompileError) as refused:
        _lowered("FULL", NEVER)
    assert "cudagraph_mode=FULL: attention backend toy is captured for no batch" in str(refused.value)
    assert "PIECEWISE" in refused.value.remedy


def test_a_model_without_attention_lowers_nothing() -> None:
    trail = Trail()
    assert lowered(CUDAGraphMode.FULL, SPLIT, CacheLayout({}, 1, 8), trail) is CUDAGraphMode.FULL
    assert trail.decisions == ()


def test_requests_without_a_recurrent_state_are_refused_where_graphs_are_whole() -> None:
    layout = CacheLayout({"toy": ALWAYS}, 1, max_num_seqs=8, state_blocks=4)
    with pytest.raises(CompileError, match="8 requests need a recurrent state each, and the cache has 4"):
        lowered(CUDAGraphMode.FULL_AND_PIECEWISE, SPLIT, layout, Trail())
    assert lowered(CUDAGraphMode.PIECEWISE, SPLIT, layout, Trail()) is CUDAGraphMode.PIECEWISE


@pytest.mark.parametrize(
    ("sizes", "length", "mode", "decode"),
    [
        ((1, 2, 4, 8, 16), 3, "FULL_AND_PIECEWISE", [9, 6, 3]),
        ((1, 2, 4), 4, "FULL_AND_PIECEWISE", [4]),
        ((4,), 4, "FULL_AND_PIECEWISE", [4]),
        # A step of decode is longer than the largest size, rounded up as it must be.
        ((4,), 3, "PIECEWISE", []),
        ((8,), 5, "PIECEWISE", []),
        ((1, 2), 3, "PIECEWISE", []),
    ],
)
def test_sizes_are_rounded_up_to_whole_steps_of_decode(
    sizes: tuple[int, ...], length: int, mode: str, decode: list[int]
) -> None:
    compilation = replace(SPLIT, capture_sizes=sizes)
    deployment = Deployment("toy", max_num_seqs=8, num_speculative_tokens=length - 1)
    got, plan, decisions = lowered_plan(compilation, deployment, CacheLayout({"toy": ALWAYS}, length, 8))
    assert got.cudagraph_mode.name == plan.mode.name == mode
    assert [graph.num_tokens for graph in plan.of(CUDAGraphMode.FULL)] == decode
    assert [graph.num_tokens for graph in plan.of(CUDAGraphMode.PIECEWISE)] == sorted(sizes, reverse=True)
    told = [(one.asked, one.got, one.reason) for one in decisions]
    reason = f"no capture size holds a step of decode, {length} tokens for each request"
    assert told == ([] if decode else [("FULL_AND_PIECEWISE", "PIECEWISE", reason)])


def test_without_a_size_nothing_is_left() -> None:
    compilation = replace(SPLIT, capture_sizes=())
    got, plan, decisions = lowered_plan(compilation, Deployment("toy"), CacheLayout({"toy": ALWAYS}, 1, 8))
    assert (got.cudagraph_mode, plan.descriptors) == (CUDAGraphMode.NONE, ())
    assert [one.reason for one in decisions] == ["no capture size is left"]
