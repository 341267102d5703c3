"""A start's steps gone through where nothing can run: whether each finds its code, attention included.

It is made of tensors that have shapes and no memory, in a process that finds nothing to compile with.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.kv_cache import AttentionMetadata, KVCache, blocks_needed
from graphkiln.core.ops.launches import Launch, Launches
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.paged import PagedTriton
from graphkiln.core.ops.specialisations import LayerDtypes, Specialisation


@dataclass(frozen=True)
class Rehearsed:
    """How many steps were gone through, and how many launches of attention found their code."""

    steps: int
    launches: int


def rehearse(served: ServedModel, parts: tuple[CompiledPart, ...], deployment: Deployment) -> Rehearsed:
    """Returns what steps of a server come to: every piece is loaded, every kind of step finds its launches.

    Raises PieceRefused for a piece that cannot be loaded, and KernelNotSealed, naming the kernel and what
    differs, for a launch without code.
    """
    for part in parts:
        part.loaded()
    if not served.launches:
        return Rehearsed(0, 0)
    noted = _Noted(served.launches)
    backend, steps = PagedTriton(noted), 0
    called = ((layer, served.launches.dtypes[layer.name]) for layer in served.layers)
    layers = dict.fromkeys((replace(layer, name=""), dtypes) for layer, dtypes in called)
    mode = FakeTensorMode(allow_non_fake_inputs=True) if served.weightless is None else served.weightless.mode
    with mode, torch.no_grad(), warnings.catch_warnings():
        # What has no memory lies at address 0, which torch does not like to be asked for.
        warnings.simplefilter("ignore")
        for tokens, requests, longest in _steps(deployment):
            steps += 1
            for layer, dtypes in layers:
                _step(backend, layer, dtypes, served, deployment, tokens, requests, longest)
    return Rehearsed(steps, noted.count)


def _steps(deployment: Deployment) -> Iterator[tuple[int, int, int]]:
    """Yields tokens, requests and the tokens of the longest request: decode of each width, then prefill."""
    drafts, most = 1 + deployment.num_speculative_tokens, deployment.max_num_batched_tokens
    for requests in range(1, min(deployment.max_num_seqs, most) + 1):
        yield requests, requests, 1
        if drafts > 1 and requests * drafts <= most:
            yield requests * drafts, requests, drafts
    for requests in (1, min(deployment.max_num_seqs, most)):
        yield most, requests, most - requests + 1


def _step(
    backend: PagedTriton,
    layer: AttentionLayer,
    dtypes: LayerDtypes,
    served: ServedModel,
    deployment: Deployment,
    tokens: int,
    requests: int,
    longest: int,
) -> None:
    def rows(heads: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tokens, heads, size, dtype=dtype, device=served.device)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=served.device)

    def cache(size: int) -> torch.Tensor:
        shape = (1, deployment.block_size, layer.kv_heads, size)
        return torch.empty(shape, dtype=served.dtype, device=served.device)

    blocks = blocks_needed(served.max_model_len, deployment.block_size)
    metadata = AttentionMetadata(
        numbers(requests + 1), numbers(requests), numbers(requests, blocks), numbers(tokens), longest
    )
    held = KVCache(cache(layer.head_size), cache(layer.value_size))
    key = rows(layer.kv_heads, layer.head_size, dtypes.key)
    backend.write(layer, held, metadata, key, rows(layer.kv_heads, layer.value_size, dtypes.value))
    query = rows(layer.heads, layer.head_size, dtypes.query)
    output = rows(layer.heads, layer.value_size, dtypes.output)
    backend.attend(layer, held, metadata, query, output)


class _Noted(Launches):
    """The launches of a model, found and counted and not made."""

    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self.count = 0
        self.put(launches.all(), launches.device, launches.dtypes)

    def find(self, wanted: Specialisation) -> Launch | None:
        """Returns what counts a launch in place of one that there is code for."""
        return None if super().find(wanted) is None else self._note

    def _note(self, *args: Any, stream: int) -> None:
        self.count += 1
