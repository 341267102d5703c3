"""Architectures that differ in what they pass to attention, each against its own eager forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import UnsupportedModel
from graphkiln.core.models.load import build
from graphkiln.core.models.source import identify
from graphkiln.core.ops.forward_context import set_forward_context
from graphkiln.core.runner import dummy_context
from tests.models.conftest import MakeFolder
from tests.models.folders import causal_lm, with_traceable_experts

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "a window in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "a window as an argument only": ("mistral", {"sliding_window": 5}),
    "softcap of scores and of logits": (
        "gemma2",
        {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 9},
    ),
    "queries scaled before": ("opt", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "fused projections": ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128}),
    "own scale, scaled logits": ("granite", {"attention_multiplier": 0.3, "logits_scaling": 3.0}),
    "values of another size": (
        "deepseek_v3",
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "num_key_value_heads": 4,
        },
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "sinks": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
        r"layers\.0\.self_attn passes s_aux",
    ),
    "chunks": (
        "llama4_text",
        {"num_local_experts": 2, "attention_chunk_size": 8, "head_dim": 16},
        "layers of type chunked_attention",
    ),
    "states": ("mamba", {}, "layers of type linear_attention"),
    "two calls of one layer": ("diffllama", {}, "runs more than once"),
}


@pytest.mark.parametrize("case", SERVED)
def test_served_architectures_give_the_bits_of_eager(make_folder: MakeFolder, case: str) -> None:
    model_type, config = SERVED[case]
    reference = causal_lm(model_type, **config)
    with_traceable_experts(reference)
    deployment = Deployment(str(make_folder(model_type, **config)))
    served = build(identify(deployment), deployment)
    for num_tokens in (1, 7, 40):
        ids, positions = served.example_inputs(num_tokens)
        with torch.no_grad(), set_forward_context(dummy_context(served, deployment, num_tokens)):
            want = reference(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
            assert torch.equal(served.compute_logits(served.backbone(ids, positions)), want)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_architectures_say_why(make_folder: MakeFolder, case: str) -> None:
    model_type, config, reason = REFUSED[case]
    deployment = Deployment(str(make_folder(model_type, **config)))
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        build(identify(deployment), deployment)
    assert "\n" not in str(caught.value)
