"""Tiny models of transformers' own making."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
}


def causal_lm(model_type: str, **config: Any) -> Any:
    """Returns a seeded causal language model with eager attention."""
    torch.manual_seed(0)
    made = transformers().AutoConfig.for_model(model_type, **{**SMALL, **config})
    return transformers().AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()


def pretrained(folder: Path, dtype: Any = "auto") -> Any:
    """Returns what transformers itself makes of a folder, with eager attention."""
    auto = transformers().AutoModelForCausalLM
    return auto.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()


def with_traceable_experts(model: Any) -> Any:
    """Returns `model`, whose experts, if it has any, are computed as ours are: the order of sums differs."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")
    return model


def transformers() -> Any:
    """Returns the module, untyped as it is."""
    return importlib.import_module("transformers")
