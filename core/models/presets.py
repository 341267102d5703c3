"""Small models that need no download: shapes of real architectures, weights from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

_NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# The window is shorter than the calls that tests make, so that it shows in their numbers.
_GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 16,
    "vocab_size": 288,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    },
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
    **_NO_SPECIAL_TOKENS,
}
_GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 2048,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "vocab_size": 272,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
    **_NO_SPECIAL_TOKENS,
}
_MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    **_NO_SPECIAL_TOKENS,
}
_QWEN2_MOE: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "vocab_size": 304,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    **_NO_SPECIAL_TOKENS,
}
_OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 160,
    "word_embed_proj_dim": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "vocab_size": 264,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "init_std": 0.2,
    **_NO_SPECIAL_TOKENS,
}

# The shapes of a model that is served, and random weights.
_LLAMA_1B: dict[str, Any] = {
    **_LLAMA,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
}

# By name, the content of a config.json.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": MappingProxyType(_LLAMA),
        "qwen3": MappingProxyType(_QWEN3),
        "gemma3": MappingProxyType(_GEMMA3),
        "gpt2": MappingProxyType(_GPT2),
        "mixtral": MappingProxyType(_MIXTRAL),
        "qwen2_moe": MappingProxyType(_QWEN2_MOE),
        "opt": MappingProxyType(_OPT),
        "llama-1b": MappingProxyType(_LLAMA_1B),
        "llama-30l": MappingProxyType({**_LLAMA, "num_hidden_layers": 30}),
    }
)
