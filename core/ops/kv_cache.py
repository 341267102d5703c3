"""The paged KV cache: blocks of token slots, who holds them, and where each token of a step goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from graphkiln.core.ops.errors import OutOfBlocks
from graphkiln.core.ops.layer import AttentionLayer


@dataclass(frozen=True)
class KVCache:
    """One layer's `key` [num_blocks, block_size, kv_heads, head_size] and `value` [.., value_size]."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True)
class AttentionMetadata:
    """Where the tokens of one step lie: R requests, T tokens, one request after the other.

    `query_start_loc` [R+1]: request r has the tokens [loc[r], loc[r+1]). `seq_lens` [R]: its length
    with them. `block_table` [R, blocks]: its blocks in order. `slot_mapping` [T]: the slot of each
    token, block * block_size + offset, below 0 for none. All are of one integer dtype. A step that is
    padded has requests of no tokens at its end. `max_query_len` is the most tokens of one request,
    None where that is not known.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int | None = None


def make_kv_caches(
    layers: Iterable[AttentionLayer],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, KVCache]:
    """Returns a cache for each layer by name; memory that is never written is never touched."""

    def empty(layer: AttentionLayer, size: int) -> torch.Tensor:
        return torch.empty(num_blocks, block_size, layer.kv_heads, size, dtype=dtype, device=device)

    return {
        layer.name: KVCache(empty(layer, layer.head_size), empty(layer, layer.value_size)) for layer in layers
    }


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Returns how many blocks hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def build_metadata(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    blocks: Sequence[Sequence[int]],
    block_size: int,
    device: torch.device,
) -> AttentionMetadata:
    """Returns the metadata of a step in which request r brings `query_lens[r]` new tokens.

    `seq_lens[r]` counts its new tokens too; `blocks[r]` are its blocks, enough for `seq_lens[r]`.
    """
    start = [0]
    slots: list[int] = []
    for query_len, seq_len, held in zip(query_lens, seq_lens, blocks, strict=True):
        if not 1 <= query_len <= seq_len or seq_len > len(held) * block_size:
            raise ValueError(
                f"{query_len} new of {seq_len} tokens do not fit {len(held)} blocks of {block_size}"
            )
        start.append(start[-1] + query_len)
        slots += [
            held[at // block_size] * block_size + at % block_size
            for at in range(seq_len - query_len, seq_len)
        ]
    width = max((len(held) for held in blocks), default=0)
    table = [[*held, *([0] * (width - len(held)))] for held in blocks]
    return AttentionMetadata(
        torch.tensor(start, dtype=torch.int64, device=device),
        torch.tensor(list(seq_lens), dtype=torch.int64, device=device),
        torch.tensor(table, dtype=torch.int64, device=device).view(len(table), width),
        torch.tensor(slots, dtype=torch.int64, device=device),
        max(query_lens, default=0),
    )


class BlockAllocator:
    """Hands out the blocks of a cache and takes them back."""

    def __init__(self, num_blocks: int) -> None:
        # Counted and not listed: a cache may have a block for each of a billion tokens.
        self._untouched = iter(range(num_blocks))
        self._returned: list[int] = []
        self._free = num_blocks

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return self._free

    def take(self, count: int) -> list[int]:
        """Returns `count` blocks; raises OutOfBlocks and takes none when there are fewer."""
        if count > self._free:
            raise OutOfBlocks(count, self._free)
        self._free -= count
        return [self._returned.pop() if self._returned else next(self._untouched) for _ in range(count)]

    def give_back(self, blocks: Iterable[int]) -> None:
        """Makes `blocks` free again."""
        returned = list(blocks)
        self._returned += returned
        self._free += len(returned)
