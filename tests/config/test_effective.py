"""What is in effect: which of it is in the key, which is in the header, and what no start carries out yet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.factors.canonical import digest
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.facts import deployment_facts, model_facts
from graphkiln.core.config.ranges import CompileRange
from graphkiln.core.config.resolve import resolve
from graphkiln.core.deployment import Deployment
from tests.config.oracle import facts


def effective(host: dict[str, Any] | None = None, **user: Any) -> EffectiveConfig:
    return resolve(CompilationConfig.from_user(user), facts(**(host or {}))).effective


@pytest.mark.parametrize(
    "user",
    [
        {"cudagraph_mode": "NONE"},
        {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2]},
        {"max_cudagraph_capture_size": 8, "cudagraph_num_of_warmups": 3, "cudagraph_copy_inputs": True},
        {"performance_mode": "interactivity"},
        {"optimization_level": 3},
        {"mode": 3},
        {"splitting_ops": ["graphkiln::unified_attention_with_output", "graphkiln::unified_kv_cache_update"]},
        {"custom_ops": ["none"]},
        {"custom_ops": ["none", "-rms_norm"]},
        {"compile_ranges_endpoints": [1, 8192, 9000]},
        {"compile_sizes": []},
        {"pass_config": {"rope_kvcache_fusion_max_token_num": 8, "fi_allreduce_fusion_max_size_mb": 3}},
        {"cache_dir": "/elsewhere"},
    ],
    ids=lambda user: next(iter(user)),
)
def test_what_changes_no_code_is_not_in_the_key(user: dict[str, Any]) -> None:
    assert digest(effective(**user).code_values()) == digest(effective().code_values())


@pytest.mark.parametrize(
    "user",
    [
        {"mode": 1},
        {"backend": "eager"},
        {"splitting_ops": ["graphkiln::unified_attention_with_output"]},
        {"custom_ops": ["+rms_norm"]},
        {"use_inductor_graph_partition": True},
        {"ir_enable_torch_wrap": False},
        {"pass_config": {"eliminate_noops": False}},
        {"dynamic_shapes_config": {"type": "unbacked"}},
        {"dynamic_shapes_config": {"assume_32_bit_indexing": True}},
        {"compile_ranges_endpoints": [8]},
        {"compile_sizes": [8]},
        {"compile_sizes": ["cudagraph_capture_sizes"], "cudagraph_capture_sizes": [8]},
        {"inductor_compile_config": {"max_autotune": True}},
    ],
    ids=lambda user: next(iter(user)),
)
def test_what_can_change_code_is_in_the_key(user: dict[str, Any]) -> None:
    assert digest(effective(**user).code_values()) != digest(effective().code_values())


def test_sizes_taken_from_the_capture_sizes_are_in_the_key_as_sizes() -> None:
    taken = effective(compile_sizes=["cudagraph_capture_sizes"], cudagraph_capture_sizes=[8])
    assert digest(taken.code_values()) == digest(effective(compile_sizes=[8]).code_values())


def test_an_option_without_a_canonical_form_is_named() -> None:
    config = effective(inductor_compile_config={"joint_custom_post_pass": len})
    with pytest.raises(NotCanonical, match=r"config\.inductor_compile_config\.joint_custom_post_pass"):
        config.code_values()


def test_the_plan_of_the_header_is_empty_where_the_mode_ended_as_none() -> None:
    plan = effective(cudagraph_mode="PIECEWISE", splitting_ops=[]).cudagraph_plan()
    assert (plan["mode"], plan["capture_sizes"], plan["max_capture_size"]) == ("NONE", [], 0)
    plan = effective(cudagraph_mode="FULL", cudagraph_capture_sizes=[1, 4]).cudagraph_plan()
    assert (plan["mode"], plan["capture_sizes"], plan["max_capture_size"]) == ("FULL", [1, 4], 4)


def test_all_of_it_is_plain_data() -> None:
    assert json.loads(json.dumps(effective().as_json())) == effective().as_json()


def test_a_single_size_is_searched_for_where_that_pays_and_the_user_wins() -> None:
    one, many = CompileRange(8, 8), CompileRange(1, 8)
    assert effective().inductor_options(many) == {}
    assert effective().inductor_options(one) == {"max_autotune": True, "coordinate_descent_tuning": True}
    user = {"max_autotune": False}
    assert effective(inductor_compile_config=user).inductor_options(one)["max_autotune"] is False
    assert effective({"device": "cpu"}).inductor_options(one) == {}


def test_a_deployment_tells_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    config = {
        "architectures": ["MixtralForCausalLM"],
        "text_config": {"hidden_size": 64, "num_local_experts": 8},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    found = deployment_facts(Deployment("m", max_num_batched_tokens=64), config, "float32")
    assert (found.device, found.max_num_batched_tokens, found.max_num_seqs) == ("cpu", 64, 64)
    assert (found.hidden_size, found.item_size, found.moe) == (64, 4, True)
    assert (found.architecture, found.quantisation) == ("MixtralForCausalLM", "fp8_block")
    assert found.compile_disabled


def test_quantisation_is_read_off_the_config() -> None:
    assert model_facts({})["quantisation"] == "none"
    assert model_facts({"quantization_config": {"quant_method": "fp8"}})["quantisation"] == "fp8"
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    assert model_facts(config)["quantisation"] == "nvfp4"
