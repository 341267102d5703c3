"""The two ops at which graphs are cut, `graphkiln::unified_kv_cache_update` and
`graphkiln::unified_attention_with_output`, and what runs behind them on a CPU.

Neither takes caches or metadata as arguments: they come from the forward context, so that nothing
of them enters a graph. Tried on torch 2.13.
"""

from __future__ import annotations

import torch

from graphkiln.core.ops.errors import UnknownLayer
from graphkiln.core.ops.forward_context import ForwardContext, get_forward_context
from graphkiln.core.ops.kv_cache import KVCache
from graphkiln.core.ops.layer import AttentionLayer

KV_CACHE_UPDATE = "graphkiln::unified_kv_cache_update"
ATTENTION = "graphkiln::unified_attention_with_output"

# Scores of one request are computed for at most this many (head, query, key) at once: 256 MiB in fp32.
_MAX_SCORES = 1 << 26

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
    cache, _ = _of_layer(context, layer_name)
    slots = context.metadata.slot_mapping
    # A graph may be padded to more tokens than the step has: the rest have no slot.
    count = slots.numel()
    cache.key.flatten(0, 1).index_copy_(0, slots, key[:count])
    cache.value.flatten(0, 1).index_copy_(0, slots, value[:count])
    return key.new_empty(0)


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
    metadata = context.metadata
    bounds = metadata.query_start_loc.tolist()
    for request, seq_len in enumerate(metadata.seq_lens.tolist()):
        start, end = bounds[request], bounds[request + 1]
        keys, values = _gather(cache, metadata.block_table[request], seq_len)
        _attend(query[start:end], keys, values, output[start:end], layer)
    output[bounds[-1] :].zero_()


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


_library.impl("unified_kv_cache_update", _kv_cache_update, "CPU")
_library.impl("unified_attention_with_output", _attention_with_output, "CPU")
torch.library.register_fake(KV_CACHE_UPDATE, _kv_cache_update_fake, lib=_library)
torch.library.register_fake(ATTENTION, _attention_with_output_fake, lib=_library)


def _of_layer(context: ForwardContext, layer_name: str) -> tuple[KVCache, AttentionLayer]:
    try:
        return context.kv_caches[layer_name], context.layers[layer_name]
    except KeyError:
        raise UnknownLayer(layer_name, tuple(context.kv_caches)) from None


def _gather(cache: KVCache, blocks: torch.Tensor, seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `seq_len` keys and values of a request, [seq_len, kv_heads, D] each."""
    held = blocks[: -(-seq_len // cache.key.shape[1])]
    return cache.key[held].flatten(0, 1)[:seq_len], cache.value[held].flatten(0, 1)[:seq_len]


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, layer: AttentionLayer
) -> None:
    """Attention of the last T of S tokens over all S, into `output` [T, heads, value_size].

    The order of operations is that of transformers' eager attention, so that both give the same bits.
    """
    repeats = layer.heads // layer.kv_heads
    keys = _heads_first(key, repeats)
    values = _heads_first(value, repeats)
    num_queries, seq_len = query.shape[0], key.shape[0]
    step = max(1, _MAX_SCORES // (layer.heads * seq_len))
    for start in range(0, num_queries, step):
        end = min(start + step, num_queries)
        scores = torch.matmul(query[start:end].transpose(0, 1), keys.transpose(1, 2)) * layer.scale
        if layer.softcap is not None:
            scores = torch.tanh(scores / layer.softcap) * layer.softcap
        hidden = _hidden(num_queries, seq_len, start, end, layer.window, query.device)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        output[start:end] = torch.matmul(weights, values).transpose(0, 1)


def _heads_first(tensor: torch.Tensor, repeats: int) -> torch.Tensor:
    """[S, kv_heads, D] as [kv_heads * repeats, S, D], each head `repeats` times in a row."""
    return tensor.transpose(0, 1).repeat_interleave(repeats, dim=0) if repeats > 1 else tensor.transpose(0, 1)


def _hidden(
    num_queries: int, seq_len: int, start: int, end: int, window: int | None, device: torch.device
) -> torch.Tensor | None:
    """True where a key may not be seen, [end - start, seq_len]; None where every query sees every key."""
    if num_queries == 1 and (window is None or seq_len <= window):
        return None
    first = seq_len - num_queries
    at = torch.arange(first + start, first + end, device=device).unsqueeze(1)
    keys = torch.arange(seq_len, device=device).unsqueeze(0)
    hidden = keys > at
    return hidden if window is None else hidden | (keys <= at - window)
