"""Runs a served model: batches of requests over a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.forward_context import ForwardContext, set_forward_context
from graphkiln.core.ops.kv_cache import (
    BlockAllocator,
    KVCache,
    blocks_needed,
    build_metadata,
    make_kv_caches,
)

if TYPE_CHECKING:
    from graphkiln.core.report import StartReport

# The cache of a runner that is not told a size: room for one request of full length, and for more
# of them up to this many bytes.
_KV_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Request:
    """One request's part of a step: its new tokens, how many it has in the cache, and its blocks.

    `blocks` hold the cached tokens and the new ones.
    """

    token_ids: tuple[int, ...]
    computed: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """The requests of one step, prefills and decodes in any order."""

    requests: tuple[Request, ...]


class Runner:
    """A model that is ready to serve: `forward` is its compiled backbone, or its eager one."""

    def __init__(
        self,
        served: ServedModel,
        forward: Callable[..., Any],
        report: StartReport | None,
        deployment: Deployment,
        *,
        num_blocks: int | None = None,
    ) -> None:
        self.served = served
        self.report = report
        self.deployment = deployment
        self._forward = forward
        self._num_blocks = num_blocks or _cache_blocks(served, deployment)
        self.allocator = BlockAllocator(self._num_blocks)
        self._caches: dict[str, KVCache] | None = None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Runs the backbone once, under the forward context that the caller has set."""
        with torch.no_grad():
            return self._forward(*inputs)

    def execute(self, batch: Batch) -> torch.Tensor:
        """Runs one step; returns the logits [R, V] of the last token of each request.

        Raises ValueError for an empty batch and for one beyond the deployment's limits.
        """
        self._check(batch)
        device = self.served.device
        query_lens = [len(request.token_ids) for request in batch.requests]
        seq_lens = [request.computed + len(request.token_ids) for request in batch.requests]
        metadata = build_metadata(
            query_lens,
            seq_lens,
            [request.blocks for request in batch.requests],
            self.deployment.block_size,
            device,
        )
        token_ids = [token for request in batch.requests for token in request.token_ids]
        positions = [
            at
            for query_len, seq_len in zip(query_lens, seq_lens, strict=True)
            for at in range(seq_len - query_len, seq_len)
        ]
        context = ForwardContext(self._kv_caches(), metadata, _by_name(self.served))
        with torch.no_grad(), set_forward_context(context):
            hidden = self._forward(
                torch.tensor(token_ids, dtype=torch.int64, device=device),
                torch.tensor(positions, dtype=torch.int64, device=device),
            )
            return self.served.compute_logits(hidden[metadata.query_start_loc[1:] - 1])

    def generate_greedy(self, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Returns the most likely continuation, at most `max_new_tokens` tokens, a stop token included.

        Raises ValueError for an empty prompt and for a length beyond `max_model_len`.
        """
        length = len(prompt_ids) + max_new_tokens
        if not prompt_ids or max_new_tokens < 1:
            raise ValueError("generation needs a prompt and at least one new token")
        if length > self.served.max_model_len:
            raise ValueError(
                f"{len(prompt_ids)} prompt and {max_new_tokens} new tokens are more than "
                f"max_model_len {self.served.max_model_len}"
            )
        # The last token is given back and never run, so it needs no slot.
        blocks = self.allocator.take(blocks_needed(length - 1, self.deployment.block_size))
        try:
            return self._generate(list(prompt_ids), max_new_tokens, tuple(blocks))
        finally:
            self.allocator.give_back(blocks)

    def _generate(self, prompt_ids: list[int], max_new_tokens: int, blocks: tuple[int, ...]) -> list[int]:
        step = self.deployment.max_num_batched_tokens
        logits = torch.empty(0)
        for start in range(0, len(prompt_ids), step):
            chunk = tuple(prompt_ids[start : start + step])
            logits = self.execute(Batch((Request(chunk, start, blocks),)))
        new: list[int] = []
        while True:
            new.append(int(logits[0].argmax()))
            if len(new) == max_new_tokens or new[-1] in self.served.stop_ids:
                return new
            computed = len(prompt_ids) + len(new) - 1
            logits = self.execute(Batch((Request((new[-1],), computed, blocks),)))

    def _check(self, batch: Batch) -> None:
        if not batch.requests or not all(request.token_ids for request in batch.requests):
            raise ValueError("a batch has at least one request, and each request at least one new token")
        limits = self.deployment
        count = sum(len(request.token_ids) for request in batch.requests)
        if count > limits.max_num_batched_tokens:
            raise ValueError(
                f"{count} tokens in a batch, max_num_batched_tokens is {limits.max_num_batched_tokens}"
            )
        if len(batch.requests) > limits.max_num_seqs:
            raise ValueError(
                f"{len(batch.requests)} requests in a batch, max_num_seqs is {limits.max_num_seqs}"
            )
        longest = max(request.computed + len(request.token_ids) for request in batch.requests)
        if longest > self.served.max_model_len:
            raise ValueError(f"a request of {longest} tokens, max_model_len is {self.served.max_model_len}")

    def _kv_caches(self) -> dict[str, KVCache]:
        if self._caches is None:
            self._caches = make_kv_caches(
                self.served.layers,
                self._num_blocks,
                self.deployment.block_size,
                self.served.dtype,
                self.served.device,
            )
        return self._caches


def dummy_context(served: ServedModel, deployment: Deployment, num_tokens: int) -> ForwardContext:
    """Returns a context for one forward of `num_tokens` tokens: new requests, the longest first.

    None is longer than `max_model_len`, and their positions are those of `served.example_inputs`.
    The caches are new and just large enough.
    """
    longest = served.max_model_len
    lengths = [min(longest, num_tokens - start) for start in range(0, num_tokens, longest)]
    blocks: list[list[int]] = []
    taken = 0
    for length in lengths:
        count = blocks_needed(length, deployment.block_size)
        blocks.append(list(range(taken, taken + count)))
        taken += count
    return ForwardContext(
        make_kv_caches(served.layers, taken, deployment.block_size, served.dtype, served.device),
        build_metadata(lengths, lengths, blocks, deployment.block_size, served.device),
        _by_name(served),
    )


def _by_name(served: ServedModel) -> dict[str, Any]:
    return {layer.name: layer for layer in served.layers}


def _cache_blocks(served: ServedModel, deployment: Deployment) -> int:
    one_request = blocks_needed(served.max_model_len, deployment.block_size)
    item = torch.empty(0, dtype=served.dtype).element_size()
    per_token = sum(layer.kv_heads * (layer.head_size + layer.value_size) for layer in served.layers) * item
    fitting = _KV_CACHE_BYTES // max(per_token * deployment.block_size, 1)
    return max(one_request, min(fitting, one_request * deployment.max_num_seqs))
