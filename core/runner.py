"""Runs a served model: batches of requests over a paged KV cache, by graphs where there are some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.descriptor import BatchDescriptor, step_of
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.backends import AttentionBackend, choose_backend
from graphkiln.core.ops.forward_context import ForwardContext, set_forward_context
from graphkiln.core.ops.kv_cache import (
    BlockAllocator,
    KVCache,
    blocks_needed,
    build_metadata,
    make_kv_caches,
)
from graphkiln.core.step import Request, StepBuffers, StepInputs

if TYPE_CHECKING:
    from graphkiln.core.graphs.model_graphs import ModelGraphs
    from graphkiln.core.graphs.recorder import Recorder
    from graphkiln.core.report import StartReport

__all__ = ["Batch", "Request", "Runner", "dummy_context"]

# The cache of a runner that is not told a size: room for one request of full length, and for more
# of them up to this many bytes, on a CUDA device up to the larger number and half of what is free.
_KV_CACHE_BYTES, _KV_CACHE_BYTES_CUDA = 1 << 30, 8 << 30


@dataclass(frozen=True)
class Batch:
    """The requests of one step, prefills and decodes in any order."""

    requests: tuple[Request, ...]


class Runner:
    """A model that is ready to serve: `forward` is its compiled backbone, or its eager one.

    `backend` computes its attention: without one, the first that can. It has no graphs until
    `use_graphs`, and none is replayed before it was captured.
    """

    def __init__(
        self,
        served: ServedModel,
        forward: Callable[..., Any],
        report: StartReport | None,
        deployment: Deployment,
        *,
        num_blocks: int | None = None,
        backend: AttentionBackend | None = None,
    ) -> None:
        self.served = served
        self.report = report
        self.deployment = deployment
        self.backend = backend or _backend_for(served)
        self.graphs: ModelGraphs | None = None
        self._forward = forward
        self.num_blocks = num_blocks or _cache_blocks(served, deployment)
        self.allocator = BlockAllocator(self.num_blocks)
        self._layers = {layer.name: layer for layer in served.layers}
        self._caches: dict[str, KVCache] | None = None
        self._buffers: StepBuffers | None = None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Runs the backbone once, under the forward context that the caller has set."""
        with torch.no_grad():
            return self._forward(*inputs)

    @property
    def plain_forward(self) -> Callable[..., Any]:
        """The backbone without graphs around it; pieces inside may have some."""
        return self._forward

    @property
    def forward(self) -> Callable[..., Any]:
        """The backbone as it is called: with graphs around it after `use_graphs`."""
        return self._forward if self.graphs is None else self.graphs.forward

    def use_graphs(self, recorder: Recorder, *, breakable: bool = False) -> ModelGraphs:
        """Makes the model ready for graphs, and returns them; a second call returns the same.

        `breakable` records the forward in segments, for a model without compiled pieces.
        """
        if self.graphs is None:
            from graphkiln.core.graphs.model_graphs import ModelGraphs, compiled_parts

            self.graphs = ModelGraphs(
                self._forward,
                compiled_parts(self._forward),
                recorder,
                breakable=breakable,
                argument_names=("input_ids", "positions"),
            )
        return self.graphs

    def execute(self, batch: Batch) -> torch.Tensor:
        """Runs one step; returns the logits [R, V] of the last token of each request.

        A captured graph that fits serves it, FULL before PIECEWISE, else it runs without. Raises
        ValueError for an empty batch and for one beyond the deployment's limits.
        """
        self._check(batch)
        lengths = [len(request.token_ids) for request in batch.requests]
        decode = 1 + self.deployment.num_speculative_tokens
        step = step_of(lengths, [length > decode for length in lengths])
        if self.graphs is None:
            descriptor = BatchDescriptor(CUDAGraphMode.NONE, step.num_tokens, step.num_reqs)
        else:
            descriptor = self.graphs.dispatch(step)
        inputs = self.prepare(batch, descriptor)
        hidden = self.run(inputs, descriptor)
        with torch.no_grad():
            return self.served.compute_logits(inputs.last_tokens(hidden))

    def prepare(self, batch: Batch, descriptor: BatchDescriptor) -> StepInputs:
        """Returns a batch's inputs, padded to `descriptor`, in the buffers that graphs read."""
        from graphkiln.core.graphs.model_graphs import longest_query

        return self._step_buffers().fill(
            batch.requests,
            self.deployment.block_size,
            num_tokens=descriptor.num_tokens,
            num_reqs=descriptor.num_reqs or len(batch.requests),
            max_query_len=longest_query(descriptor),
        )

    def run(
        self,
        inputs: StepInputs,
        descriptor: BatchDescriptor,
        forward: Callable[..., Any] | None = None,
    ) -> torch.Tensor:
        """Runs a prepared step, padding included; returns the hidden states [T, H].

        They lie where the next step may write when a graph made them. `forward` is called in place of
        the runner's own.
        """
        context = ForwardContext(
            self.kv_caches(), inputs.metadata, self._layers, self.backend, descriptor.mode, descriptor
        )
        with torch.no_grad(), set_forward_context(context):
            hidden: torch.Tensor = (forward or self.forward)(inputs.token_ids, inputs.positions)
        return hidden

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

    def kv_caches(self) -> dict[str, KVCache]:
        """Returns the cache of each layer; the first call makes them."""
        if self._caches is None:
            self._caches = make_kv_caches(
                self.served.layers,
                self.num_blocks,
                self.deployment.block_size,
                self.served.dtype,
                self.served.device,
            )
        return self._caches

    def _step_buffers(self) -> StepBuffers:
        if self._buffers is None:
            self._buffers = StepBuffers(
                self.deployment.max_num_batched_tokens,
                self.deployment.max_num_seqs,
                blocks_needed(self.served.max_model_len, self.deployment.block_size),
                self.served.device,
            )
        return self._buffers


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
        {layer.name: layer for layer in served.layers},
        _backend_for(served),
    )


def _backend_for(served: ServedModel) -> AttentionBackend:
    return choose_backend(served.layers, served.dtype, served.device, launches=served.launches)


def _cache_blocks(served: ServedModel, deployment: Deployment) -> int:
    one_request = blocks_needed(served.max_model_len, deployment.block_size)
    item = torch.empty(0, dtype=served.dtype).element_size()
    per_token = sum(layer.kv_heads * (layer.head_size + layer.value_size) for layer in served.layers) * item
    limit = _KV_CACHE_BYTES
    if served.device.type == "cuda" and served.weightless is None and torch.cuda.is_available():
        limit = min(_KV_CACHE_BYTES_CUDA, torch.cuda.mem_get_info(served.device)[0] // 2)
    fitting = limit // max(per_token * deployment.block_size, 1)
    return max(one_request, min(fitting, one_request * deployment.max_num_seqs))
