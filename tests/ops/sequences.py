"""Requests whose attention is known in full, run through the two ops step by step."""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch

import graphkiln.core.ops.attention  # noqa: F401
from graphkiln.core.ops.backends import AttentionBackend
from graphkiln.core.ops.forward_context import ForwardContext, set_forward_context
from graphkiln.core.ops.kv_cache import (
    AttentionMetadata,
    BlockAllocator,
    KVCache,
    blocks_needed,
    build_metadata,
    make_kv_caches,
)
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.plain import PlainTorch

CPU = torch.device("cpu")
BLOCK = 4


class Sequence:
    """One request's tokens, known in full from the start, and how far it has come."""

    def __init__(
        self,
        layer: AttentionLayer,
        length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        def draw(heads: int, size: int) -> torch.Tensor:
            return torch.randn(length, heads, size).to(dtype).to(device)

        self.query = draw(layer.heads, layer.head_size)
        self.key = draw(layer.kv_heads, layer.head_size)
        self.value = draw(layer.kv_heads, layer.value_size)
        self.length, self.done = length, 0
        self.blocks: list[int] = []

    def reference(self, layer: AttentionLayer) -> torch.Tensor:
        """Dense attention over the whole request in float64, written down token by token."""
        query, key, value = self.query.double(), self.key.double(), self.value.double()
        out = torch.empty(self.length, layer.heads, layer.value_size, dtype=torch.float64)
        for at in range(self.length):
            first = 0 if layer.window is None else max(0, at + 1 - layer.window)
            for head in range(layer.heads):
                shared = head // (layer.heads // layer.kv_heads)
                scores = (key[first : at + 1, shared] @ query[at, head]) * layer.scale
                if layer.softcap is not None:
                    scores = torch.tanh(scores / layer.softcap) * layer.softcap
                out[at, head] = torch.softmax(scores, 0) @ value[first : at + 1, shared]
        return out


def step(
    layer: AttentionLayer,
    caches: dict[str, KVCache],
    allocator: BlockAllocator,
    work: Several[tuple[Sequence, int]],
    padding: int = 0,
    *,
    backend: AttentionBackend | None = None,
    metadata: AttentionMetadata | None = None,
) -> list[torch.Tensor]:
    """Runs both ops on the next tokens of some sequences; returns each one's output.

    `padding` tokens of noise come behind them, whose output has to be zero.
    """
    block_size = caches[layer.name].key.shape[1]
    for sequence, count in work:
        wanted = blocks_needed(sequence.done + count, block_size) - len(sequence.blocks)
        sequence.blocks += allocator.take(wanted)
    counts = [count for _, count in work]
    device = work[0][0].query.device
    metadata = metadata or build_metadata(
        counts, [s.done + count for s, count in work], [s.blocks for s, _ in work], block_size, device
    )

    def rows(name: str) -> torch.Tensor:
        parts = [getattr(s, name)[s.done : s.done + count] for s, count in work]
        return torch.cat([*parts, torch.full_like(parts[0][:1], 7.0).expand(padding, -1, -1)])

    query, key, value = rows("query"), rows("key"), rows("value")
    output = query.new_full((query.shape[0], layer.heads, layer.value_size), float("nan"))
    context = ForwardContext(caches, metadata, {layer.name: layer}, backend or PlainTorch())
    with set_forward_context(context):
        written = torch.ops.graphkiln.unified_kv_cache_update(key, value, layer.name)
        assert written.numel() == 0
        torch.ops.graphkiln.unified_attention_with_output(query, key, value, output, layer.name, written)
    assert not output[sum(counts) :].any()
    for sequence, count in work:
        sequence.done += count
    return list(torch.split(output[: sum(counts)], counts))


def cache_for(
    layer: AttentionLayer,
    num_blocks: int,
    *,
    block_size: int = BLOCK,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> tuple[dict[str, KVCache], BlockAllocator]:
    """Returns a cache that is full of NaN: a slot that was never written must not be read."""
    caches = make_kv_caches([layer], num_blocks, block_size, dtype, device)
    for cache in caches.values():
        cache.key.fill_(float("nan"))
        cache.value.fill_(float("nan"))
    return caches, BlockAllocator(num_blocks)
