"""Paged attention in plain PyTorch: for every device, one request after the other."""

from __future__ import annotations

import torch

from graphkiln.core.ops.backends import AttentionBackend
from graphkiln.core.ops.kv_cache import AttentionMetadata, KVCache
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.support import AttentionSupport

# Scores of one request are computed for at most this many (head, query, key) at once: 256 MiB in fp32.
_MAX_SCORES = 1 << 26


class PlainTorch(AttentionBackend):
    """The reference: bit by bit what transformers' eager attention gives. It waits for the lengths."""

    name = "torch"
    support = AttentionSupport.NEVER

    def refusal(self, layer: AttentionLayer, dtype: torch.dtype, device: torch.device) -> str | None:
        """Returns None: it computes every layer."""
        return None

    def write(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Puts keys and values into their slots."""
        # A graph may be padded to more tokens than the step has: the rest have no slot.
        slots = metadata.slot_mapping[: key.shape[0]]
        kept = torch.nonzero(slots >= 0).squeeze(1)
        cache.key.flatten(0, 1).index_copy_(0, slots[kept], key[kept])
        cache.value.flatten(0, 1).index_copy_(0, slots[kept], value[kept])

    def attend(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        query: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Fills `output` request by request."""
        bounds = metadata.query_start_loc.tolist()
        for request, seq_len in enumerate(metadata.seq_lens.tolist()):
            start, end = bounds[request], bounds[request + 1]
            if start < end:
                keys, values = _gather(cache, metadata.block_table[request], seq_len)
                _attend(query[start:end], keys, values, output[start:end], layer)
        output[bounds[-1] :].zero_()


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
