"""Levels: the observed table, user values that win, and the decisions that tell of each lowering."""

from __future__ import annotations

from typing import Any

import pytest

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.resolve import Resolution, resolve
from tests.config.differences import LEVELS
from tests.config.oracle import compare, facts, needs, outcome, splitting_ops

CATEGORIES = {
    "unknown_mode": "is not one of NONE, STOCK_TORCH_COMPILE",
    "unknown_cudagraph_mode": "cudagraph_mode: ",
    "unknown_field": "has no field",
    "invalid_value": "is not one of NONE (0)",
    "bad_backend": "backend: ",
    "custom_ops_two_bases": "are two bases",
    "custom_ops_conflict": "contradict each other",
    "custom_ops_syntax": "is not all, none, +NAME or -NAME",
    "attention_split_with_attention_fusion": "a cut at attention keeps",
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "fp8_block": {"quantisation": "fp8_block"},
    "fp8_tensor": {"quantisation": "fp8"},
    "nvfp4": {"quantisation": "nvfp4"},
    "moe": {"moe": True},
    "encoder_decoder": {"encoder_decoder": True},
    "pooling": {"pooling": True},
}
SWITCHES = {
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "breakable",
    "TORCH_COMPILE_DISABLE": "compile_disabled",
    "VLLM_BATCH_INVARIANT": "batch_invariant",
}


def row_facts(given: dict[str, Any]) -> dict[str, Any]:
    """Returns what a row says of the host and the model, as facts."""
    names = ("capability", "flashinfer", "tensor_parallel_size", "data_parallel_size", "all2all_backend")
    found = {name: given[name] for name in names if name in given}
    kind, _, architecture = given.get("model", "dense").partition(":")
    found |= {**MODELS[kind], "architecture": architecture, "hidden_size": 4096}
    found |= {SWITCHES[name]: value == "1" for name, value in given.get("env", {}).items()}
    # vLLM's older runner captures around a model that torch.compile runs; ours is like its newer one.
    return found | {"captures_stock_compile": given.get("runner") == 1}


def row_resolution(given: dict[str, Any]) -> Resolution:
    user = {**given["user"]}
    if "splitting_ops" in user:
        user["splitting_ops"] = splitting_ops(user["splitting_ops"])
    user |= {"optimization_level": given["level"], "enforce_eager": given.get("enforce_eager", False)}
    return resolve(CompilationConfig.from_user(user), facts(**row_facts(given)))


def answer(given: dict[str, Any]) -> dict[str, Any]:
    def run() -> dict[str, Any]:
        effective = row_resolution(given).effective
        return {
            "mode": effective.mode.name,
            "cudagraph_mode": effective.cudagraph_mode.name,
            "backend": effective.backend,
            "passes_on": sorted(effective.passes.on),
            "splitting_ops": list(effective.splitting_ops),
            "custom_ops": list(effective.custom_ops),
            "use_inductor_graph_partition": effective.use_inductor_graph_partition,
            "ir_enable_torch_wrap": effective.ir_enable_torch_wrap,
            "capture_sizes": [len(effective.capture_sizes), max(effective.capture_sizes, default=0)],
            "warmups": effective.warmups,
            "breakable": effective.breakable,
        }

    return outcome(run, CATEGORIES)


@needs("levels")
def test_what_a_level_sets_is_what_was_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rewritten(table: str) -> list[dict[str, Any]]:
        return [in_our_names(row) for row in original(table)]

    from tests.config import oracle

    original = oracle.rows
    monkeypatch.setattr(oracle, "rows", rewritten)
    compare("levels", answer, LEVELS)


def in_our_names(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row whose answer has our op names, and passes in any order."""
    if "output" not in row:
        return row
    output = {**row["output"], "splitting_ops": splitting_ops(row["output"]["splitting_ops"])}
    return {**row, "output": {**output, "passes_on": sorted(output["passes_on"])}}


def effective(level: int = 2, host: dict[str, Any] | None = None, **user: Any) -> EffectiveConfig:
    config = CompilationConfig.from_user({"optimization_level": level, **user})
    return resolve(config, facts(**(host or {}))).effective


def made(level: int = 2, host: dict[str, Any] | None = None, **user: Any) -> list[tuple[str, Any, Any, str]]:
    config = CompilationConfig.from_user({"optimization_level": level, **user})
    found = resolve(config, facts(**(host or {}))).decisions
    return [(row.field, row.asked, row.got, row.reason) for row in found]


def test_false_stays_false_where_the_level_would_say_true() -> None:
    assert "fuse_norm_quant" in effective(custom_ops=["all"]).passes.on
    assert (
        "fuse_norm_quant"
        not in effective(custom_ops=["all"], pass_config={"fuse_norm_quant": False}).passes.on
    )
    assert "fuse_norm_quant" in effective(custom_ops=["all"], pass_config={"fuse_norm_quant": None}).passes.on


def test_what_the_user_sets_wins_over_every_default() -> None:
    found = effective(
        ir_enable_torch_wrap=False, cudagraph_num_of_warmups=3, use_inductor_graph_partition=False
    )
    assert (found.ir_enable_torch_wrap, found.warmups, found.use_inductor_graph_partition) == (
        False,
        3,
        False,
    )


def test_what_the_level_chose_is_said() -> None:
    assert made(1) == [
        ("mode", None, "VLLM_COMPILE", "optimization level 1"),
        ("cudagraph_mode", None, "PIECEWISE", "optimization level 1"),
    ]
    assert made(2, mode="VLLM_COMPILE", cudagraph_mode="FULL") == []


def test_a_pass_that_a_level_switches_on_is_said_where_it_runs() -> None:
    switched = ("pass_config.fuse_norm_quant", None, True, "optimization level 2")
    assert switched in made(2, custom_ops=["+rms_norm"])
    assert switched not in made(2, custom_ops=["+rms_norm"], mode="NONE")


def test_every_step_of_a_lowering_is_said() -> None:
    assert made(2, {"pooling": True}, mode="NONE") == [
        ("cudagraph_mode", None, "FULL_AND_PIECEWISE", "optimization level 2"),
        ("cudagraph_mode", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "mode NONE makes no pieces to capture"),
        (
            "cudagraph_mode",
            "FULL_DECODE_ONLY",
            "PIECEWISE",
            "a pooling model has no uniform decode to capture whole",
        ),
        ("cudagraph_mode", "PIECEWISE", "NONE", "mode NONE makes no pieces to capture"),
    ]


def test_a_cpu_has_no_cuda_graphs_and_none_of_their_passes() -> None:
    cpu = {"device": "cpu", "capability": 0}
    found = effective(
        2, cpu, pass_config={"enable_qk_norm_rope_fusion": True}, cudagraph_capture_sizes=[1, 2]
    )
    assert found.mode.name == "VLLM_COMPILE"
    assert (found.cudagraph_mode.name, found.capture_sizes, found.warmups) == ("NONE", (), 0)
    assert found.passes.on == ("eliminate_noops",)
    assert found.custom_ops == ("none",)
    assert made(2, cpu, pass_config={"enable_qk_norm_rope_fusion": True}, cudagraph_capture_sizes=[1, 2]) == [
        ("mode", None, "VLLM_COMPILE", "optimization level 2"),
        ("pass_config.enable_qk_norm_rope_fusion", True, False, "it needs a CUDA target"),
        ("cudagraph_mode", None, "FULL_AND_PIECEWISE", "optimization level 2"),
        ("cudagraph_mode", "FULL_AND_PIECEWISE", "NONE", "a CPU has no CUDA graphs"),
        ("cudagraph_capture_sizes", [1, 2], [], "no CUDA graphs are captured"),
    ]


def test_torch_compile_turned_off_outside_is_said() -> None:
    assert made(2, {"compile_disabled": True}, mode=3)[0] == (
        "mode", "VLLM_COMPILE", "NONE", "TORCH_COMPILE_DISABLE=1 turns torch.compile off",
    )  # fmt: skip
