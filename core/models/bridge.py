"""The attention function that transformers calls in our place, and how a layer gets its name.

Tried on transformers 5.24: a function registered with `AttentionInterface` and no mask function
under the same name, so that transformers makes no mask at all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Registers the two ops that the function below calls.
import graphkiln.core.ops.attention  # noqa: F401

ATTENTION_NAME = "graphkiln"


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Returns the attention of one request batch through our two ops, [1, T, heads, value_size].

    `query` is [1, heads, T, D], `key` and `value` are [1, kv_heads, T, D]. Scale, window and softcap
    are not taken from here: the probe recorded them, and the forward context holds them by layer.
    """
    name = module.graphkiln_layer
    queries = query.transpose(1, 2)[0]
    keys = key.transpose(1, 2)[0]
    values = value.transpose(1, 2)[0]
    output = queries.new_empty((queries.shape[0], queries.shape[1], values.shape[2]))
    written = torch.ops.graphkiln.unified_kv_cache_update.default(keys, values, name)
    torch.ops.graphkiln.unified_attention_with_output.default(queries, keys, values, output, name, written)
    return output[None], None


def use_bridge(model: Any) -> None:
    """Makes `model` call our attention function; its layers have been named before."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attention)
    model.set_attn_implementation(ATTENTION_NAME)


def name_layer(module: nn.Module, name: str) -> None:
    """Gives an attention module the name under which the forward context knows its cache."""
    module.graphkiln_layer = name  # type: ignore[assignment]
