"""What is taken back because no start here does it, what is refused, and that each is said."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch._inductor.config

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.facts import Device
from graphkiln.core.config.inductor_options import OURS, known_options
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.config.settle import settle
from graphkiln.core.config.splitting import ATTENTION_OPS
from graphkiln.core.deployment import Deployment


def settled(
    tokens: int = 64, device: Device = "cpu", **user: Any
) -> tuple[EffectiveConfig, dict[str, tuple[Any, Any, str]]]:
    """Returns what is in effect, and of the decisions what the user had asked for."""
    deployment = Deployment("m", max_num_batched_tokens=tokens)
    found = settle(deployment, CompilationConfig.from_user(user), {}, "float32", device)
    asked = {row.field: (row.asked, row.got, row.reason) for row in found.decisions if row.asked is not None}
    asked.pop("cudagraph_mode", None)
    return found.effective, asked


def test_a_plain_start_takes_nothing_back() -> None:
    assert settled()[1] == {}


@pytest.mark.parametrize(
    ("user", "field", "asked", "got"),
    [
        ({"custom_ops": ["+rms_norm", "+gelu"]}, "custom_ops", ["+rms_norm", "+gelu"], []),
        ({"custom_ops": ["all", "-gelu"]}, "custom_ops", ["all", "-gelu"], []),
        ({"ir_enable_torch_wrap": True}, "ir_enable_torch_wrap", True, False),
        ({"pass_config": {"fuse_norm_quant": True}}, "pass_config.fuse_norm_quant", True, False),
        ({"compile_sizes": [1, 65]}, "compile_sizes", [1, 65], [1]),
        (
            {"inductor_compile_config": {"cpp.simdlen": 256}},
            "inductor_compile_config.cpp.simdlen", 256, None,
        ),
    ],
)  # fmt: skip
def test_what_no_start_does_is_taken_back_with_a_reason_and_leaves_the_key_alone(
    user: dict[str, Any], field: str, asked: Any, got: Any
) -> None:
    effective, decisions = settled(**user)
    assert set(decisions) == {field}
    assert decisions[field][:2] == (asked, got)
    assert decisions[field][2]
    without = settled(compile_sizes=[1])[0] if field == "compile_sizes" else settled()[0]
    assert effective.code_values() == without.code_values()


def test_no_size_is_searched_for_and_that_is_said_where_it_would_have_been() -> None:
    effective, decisions = settled(device="cuda", compile_sizes=[8])
    assert effective.single_size_options == {}
    assert set(decisions) == {
        "inductor_compile_config.max_autotune", "inductor_compile_config.coordinate_descent_tuning",
    }  # fmt: skip
    assert settled(device="cuda")[1] == settled(compile_sizes=[8])[1] == {}


def test_on_a_gpu_inductor_is_told_where_to_partition_and_nothing_is_cut() -> None:
    effective = settled(device="cuda", use_inductor_graph_partition=True)[0]
    assert (effective.cutting_ops, effective.partition_ops) == ((), ATTENTION_OPS)
    effective = settled(device="cuda")[0]
    assert (effective.cutting_ops, effective.partition_ops) == (effective.splitting_ops, ())
    assert settled(use_inductor_graph_partition=True)[0].partition_ops == ()


def test_what_changes_nothing_is_no_decision() -> None:
    assert settled(custom_ops=["none", "-rms_norm"], pass_config={"fuse_norm_quant": False})[1] == {}


def test_a_pass_that_the_target_cannot_run_keeps_that_reason() -> None:
    reason = settled(pass_config={"fuse_rope_kvcache": True})[1]["pass_config.fuse_rope_kvcache"][2]
    assert reason == "it needs a ROCm target, and there is none"


def test_on_a_cpu_partitioning_by_inductor_leaves_one_piece() -> None:
    effective, decisions = settled(use_inductor_graph_partition=True)
    assert effective.use_inductor_graph_partition
    assert effective.splitting_ops == ()
    assert decisions["splitting_ops"][:2] == ([*ATTENTION_OPS], [])


@pytest.mark.parametrize("user", [{"mode": "DYNAMO_TRACE_ONCE"}, {"backend": "eager"}])
def test_where_nothing_is_split_nothing_is_partitioned(user: dict[str, Any]) -> None:
    effective, decisions = settled(use_inductor_graph_partition=True, **user)
    assert not effective.use_inductor_graph_partition
    assert decisions["use_inductor_graph_partition"][:2] == (True, False)
    assert effective.code_values() == settled(**user)[0].code_values()


def test_an_option_that_inductor_does_not_have_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"has no option 'max_autotun': did you mean max_autotune\?$"):
        settled(inductor_compile_config={"max_autotun": True})
    assert settled(inductor_compile_config={"cpp.max_horizontal_fusion_size": 4})[1] == {}


def test_the_options_are_those_that_inductor_itself_knows() -> None:
    live = set(torch._inductor.config._config)  # type: ignore[attr-defined]
    assert live - {"TYPE_CHECKING"} == known_options()
    assert set(OURS) <= live


def test_one_token_is_refused_where_a_graph_is_traced_and_served_where_none_is() -> None:
    asked: list[dict[str, Any]] = [{}, {"mode": "DYNAMO_TRACE_ONCE"}]
    for user in asked:
        with pytest.raises(ValueError, match=r"^max_num_batched_tokens: 1 leaves no token count"):
            settled(1, **user)
    assert not settled(1, optimization_level=0)[0].compiles


def test_settling_imports_no_torch() -> None:
    script = (
        "import sys; from graphkiln.core.config.settle import settle;"
        "from graphkiln.core.config.compilation import CompilationConfig as C;"
        "from graphkiln.core.deployment import Deployment;"
        "settle(Deployment('m'), C(inductor_compile_config={'max_autotune': True}), {}, 'float32');"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(("word", "breakable"), [("", False), ("0", False), ("1", True)])
def test_graphs_with_breaks_are_asked_for_by_a_variable_and_compile_nothing(
    monkeypatch: pytest.MonkeyPatch, word: str, breakable: bool
) -> None:
    monkeypatch.setenv("GRAPHKILN_BREAKABLE_GRAPHS", word)
    effective = settle(Deployment("m"), CompilationConfig(), {}, "float32", "cuda").effective
    assert effective.breakable is breakable
    assert effective.compiles is not breakable
    assert effective.cudagraph_mode is CUDAGraphMode.FULL_AND_PIECEWISE


def test_the_variable_says_no_to_an_architecture_that_brings_its_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = {"architectures": ["KimiLinearForCausalLM"]}
    assert settle(Deployment("m"), CompilationConfig(), model, "float32", "cuda").effective.breakable
    monkeypatch.setenv("GRAPHKILN_BREAKABLE_GRAPHS", "0")
    assert not settle(Deployment("m"), CompilationConfig(), model, "float32", "cuda").effective.breakable
