"""The inputs of a step where graphs expect them: buffers that keep their place, filled anew for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from graphkiln.core.ops.kv_cache import AttentionMetadata

# Sections begin at addresses that vector loads can use, whatever the sizes are: 128 bytes.
_ALIGNED = 16
# What goes to the device is written to pinned memory first, which must stay until it was read.
_STAGES = 2


@dataclass(frozen=True)
class Request:
    """One request's part of a step: its new tokens, how many it has in the cache, and its blocks.

    `blocks` hold the cached tokens and the new ones.
    """

    token_ids: tuple[int, ...]
    computed: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class StepInputs:
    """`token_ids` and `positions` [T] of a step, where its tokens lie, and its counts before padding."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata
    num_tokens: int
    num_reqs: int

    def last_tokens(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the rows [R, H] of `hidden` [T, H] that belong to the last token of each request."""
        if self.num_tokens == self.num_reqs:
            return hidden[: self.num_reqs]
        return hidden[self.metadata.query_start_loc[1 : self.num_reqs + 1] - 1]


class StepBuffers:
    """Buffers for steps of up to `max_tokens` tokens and `max_reqs` requests of `max_blocks` blocks each.

    A step takes one transfer to the device, and a copy there that spreads the block table. Steps are
    expected on one stream: a buffer is written again when the step before has read it.
    """

    def __init__(self, max_tokens: int, max_reqs: int, max_blocks: int, device: torch.device) -> None:
        self._device = device
        self._tokens, self._reqs, self._blocks = max_tokens, max_reqs, max_blocks
        sizes = {
            "query_start_loc": max_reqs + 1,
            "seq_lens": max_reqs,
            "slots": max_tokens,
            "token_ids": max_tokens,
            "positions": max_tokens,
            "blocks": max_reqs * max_blocks,
        }
        self._start: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            self._start[name] = end
            end += -(-size // _ALIGNED) * _ALIGNED
        self._packed = torch.zeros(end, dtype=torch.int64, device=device)
        self._table = torch.zeros(max_reqs, max_blocks, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._stages = [
            torch.zeros(end, dtype=torch.int64, pin_memory=pinned) for _ in range(_STAGES if pinned else 1)
        ]
        self._read = [torch.cuda.Event() for _ in self._stages] if pinned else []
        self._next = 0

    def fill(
        self,
        requests: Sequence[Request],
        block_size: int,
        *,
        num_tokens: int,
        num_reqs: int,
        max_query_len: int | None = None,
    ) -> StepInputs:
        """Returns the inputs of a step, padded to `num_tokens` and `num_reqs`.

        Tokens of padding have no slot, requests of padding no tokens. `max_query_len` is what a graph
        was captured for; without it, what the requests have. Raises ValueError where a request's blocks
        do not hold its tokens.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, seq_lens = [0], []
        width = max(len(request.blocks) for request in requests)
        table: list[int] = []
        for request in requests:
            end = request.computed + len(request.token_ids)
            blocks = request.blocks
            if end > len(blocks) * block_size:
                raise ValueError(f"{end} tokens do not fit {len(blocks)} blocks of {block_size}")
            token_ids += request.token_ids
            for at in range(request.computed, end):
                positions.append(at)
                slots.append(blocks[at // block_size] * block_size + at % block_size)
            starts.append(len(token_ids))
            seq_lens.append(end)
            table += blocks
            table += [0] * (width - len(blocks))
        real, padding = len(requests), num_reqs - len(requests)
        tokens, unused = len(token_ids), num_tokens - len(token_ids)
        self._upload(
            {
                "query_start_loc": starts + [tokens] * padding,
                "seq_lens": seq_lens + [0] * padding,
                "slots": slots + [-1] * unused,
                "token_ids": token_ids + [0] * unused,
                "positions": positions + [0] * unused,
                "blocks": table,
            }
        )
        held = self._section("blocks", real * width).view(real, width)
        self._table[:real, :width].copy_(held)
        longest = max_query_len or max(len(request.token_ids) for request in requests)
        metadata = AttentionMetadata(
            self._section("query_start_loc", num_reqs + 1),
            self._section("seq_lens", num_reqs),
            self._table[:num_reqs],
            self._section("slots", num_tokens),
            longest,
        )
        return StepInputs(
            self._section("token_ids", num_tokens),
            self._section("positions", num_tokens),
            metadata,
            tokens,
            real,
        )

    def _section(self, name: str, size: int) -> torch.Tensor:
        start = self._start[name]
        return self._packed[start : start + size]

    def _upload(self, values: dict[str, list[int]]) -> None:
        stage = self._stages[self._next]
        if self._read:
            self._read[self._next].synchronize()
        for name, numbers in values.items():
            start = self._start[name]
            stage[start : start + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        end = self._start["blocks"] + len(values["blocks"])
        self._packed[:end].copy_(stage[:end], non_blocking=True)
        if self._read:
            self._read[self._next].record()
        self._next = (self._next + 1) % len(self._stages)
