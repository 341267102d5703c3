"""A step before it is padded, and the batch that a captured graph serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkiln.core.config.modes import CUDAGraphMode


@dataclass(frozen=True)
class BatchDescriptor:
    """The batch that one graph serves, and the key that it is found by.

    `mode` is PIECEWISE or FULL, or NONE for a step that runs without a graph. `num_tokens` and
    `num_reqs` are what a step is padded to; `num_reqs` None leaves the requests as they are.
    `uniform_token_count` None takes requests of any length, a number those of just that many tokens.
    `max_query_len` None bounds no request. `num_active_loras` is a LoRA case, `num_ubatches` the
    number of microbatches that the batch is split into.
    """

    mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None = None
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1


@dataclass(frozen=True)
class Step:
    """The batch of one step as it comes, before any padding; the fields are those of `BatchDescriptor`.

    `uniform_token_count` is set for pure decode with requests of one length, `max_query_len` for any
    pure decode.
    """

    num_reqs: int
    num_tokens: int
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1


def step_of(query_lens: Sequence[int], prefills: Sequence[bool]) -> Step:
    """Returns the step of requests with so many new tokens each; `prefills` says which still read a prompt.

    One token that extends a cached prompt is computed like decode, so that it counts as decode.
    """
    longest = max(query_lens, default=0)
    if any(prefill and length > 1 for length, prefill in zip(query_lens, prefills, strict=True)):
        return Step(len(query_lens), sum(query_lens))
    uniform = longest if query_lens and min(query_lens) == longest else None
    return Step(len(query_lens), sum(query_lens), uniform, longest or None)


def example_query_lens(descriptor: BatchDescriptor, max_num_seqs: int) -> tuple[int, ...]:
    """Returns the tokens of each request of a batch that fills `descriptor`, as even as they can be."""
    if descriptor.uniform_token_count is not None:
        return (descriptor.uniform_token_count,) * (descriptor.num_tokens // descriptor.uniform_token_count)
    requests = descriptor.num_reqs or min(descriptor.num_tokens, max_num_seqs)
    each, more = divmod(descriptor.num_tokens, requests)
    return (each + 1,) * more + (each,) * (requests - more)
