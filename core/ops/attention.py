"""The two ops at which graphs are cut: `graphkiln::unified_kv_cache_update` and
`graphkiln::unified_attention_with_output`.

Neither takes caches or metadata as arguments: they come from the forward context, so that nothing
of them enters a graph, and with them the backend that computes. Tried on torch 2.11 and 2.13.
"""

from __future__ import annotations

import torch

from graphkiln.core.graphs.breakable import breaks_graphs
from graphkiln.core.ops.errors import UnknownLayer
from graphkiln.core.ops.forward_context import ForwardContext, get_forward_context
from graphkiln.core.ops.kv_cache import KVCache
from graphkiln.core.ops.layer import AttentionLayer

KV_CACHE_UPDATE = "graphkiln::unified_kv_cache_update"
ATTENTION = "graphkiln::unified_attention_with_output"

_library = torch.library.Library("graphkiln", "FRAGMENT")
_library.define("unified_kv_cache_update(Tensor key, Tensor value, str layer_name) -> Tensor")
_library.define(
    "unified_attention_with_output(Tensor query, Tensor key, Tensor value, Tensor(a!) output, "
    "str layer_name, Tensor? kv_cache_dummy_dep=None) -> ()"
)


def _kv_cache_update(key: torch.Tensor, value: torch.Tensor, layer_name: str) -> torch.Tensor:
    """Writes the step's keys [T, kv_heads, D] and values into the layer's cache; returns an empty tensor.

    The result is there to be passed on to the attention op: it keeps the order of the two, which
    no tensor that a graph can see would otherwise tie together.
    """
    context = get_forward_context(KV_CACHE_UPDATE)
    cache, layer = _of_layer(context, layer_name)
    if context.backend.captures_write:
        context.backend.write(layer, cache, context.metadata, key, value)
    else:
        _write_between_graphs(key, value, layer_name)
    return key.new_empty(0)


@breaks_graphs
def _write_between_graphs(key: torch.Tensor, value: torch.Tensor, layer_name: str) -> None:
    context = get_forward_context(KV_CACHE_UPDATE)
    cache, layer = _of_layer(context, layer_name)
    context.backend.write(layer, cache, context.metadata, key, value)


@breaks_graphs
def _attention_with_output(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    layer_name: str,
    kv_cache_dummy_dep: torch.Tensor | None = None,
) -> None:
    """Fills `output` [T, heads, value_size] with the attention of `query` over the layer's cache."""
    context = get_forward_context(ATTENTION)
    cache, layer = _of_layer(context, layer_name)
    context.backend.attend(layer, cache, context.metadata, query, output)


def _kv_cache_update_fake(key: torch.Tensor, value: torch.Tensor, layer_name: str) -> torch.Tensor:
    return key.new_empty(0)


def _attention_with_output_fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    layer_name: str,
    kv_cache_dummy_dep: torch.Tensor | None = None,
) -> None:
    return None


for _device in ("CPU", "CUDA"):
    _library.impl("unified_kv_cache_update", _kv_cache_update, _device)
    _library.impl("unified_attention_with_output", _attention_with_output, _device)
torch.library.register_fake(KV_CACHE_UPDATE, _kv_cache_update_fake, lib=_library)
torch.library.register_fake(ATTENTION, _attention_with_output_fake, lib=_library)


def _of_layer(context: ForwardContext, layer_name: str) -> tuple[KVCache, AttentionLayer]:
    try:
        return context.kv_caches[layer_name], context.layers[layer_name]
    except KeyError:
        raise UnknownLayer(layer_name, tuple(context.kv_caches)) from None
