"""What computes attention behind the two splitting ops: backends, and which one a model gets.

A backend is a class that a user can add: `register_attention_backend` puts it before those there.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import ClassVar

import torch

from graphkiln.core.ops.errors import NoAttentionBackend
from graphkiln.core.ops.kv_cache import AttentionMetadata, KVCache
from graphkiln.core.ops.launches import Launches
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.support import AttentionSupport


class AttentionBackend(abc.ABC):
    """Writes and reads paged caches. It holds no state of a step: that comes with the metadata.

    `support` says which batches may be captured whole. `captures_write` is true when `write` looks at
    nothing on the host, so that a graph with breaks keeps it inside.
    """

    name: ClassVar[str]
    support: ClassVar[AttentionSupport]
    captures_write: ClassVar[bool] = False

    @abc.abstractmethod
    def refusal(self, layer: AttentionLayer, dtype: torch.dtype, device: torch.device) -> str | None:
        """Returns why a layer cannot be computed here, None when it can."""

    @abc.abstractmethod
    def write(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Puts the step's keys [T, kv_heads, D] and values into their slots; a slot below 0 is no slot."""

    @abc.abstractmethod
    def attend(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        query: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Fills `output` [T, heads, value_size]; rows behind the last request's tokens become zero."""


_registered: list[AttentionBackend] = []


def register_attention_backend(backend: type[AttentionBackend]) -> type[AttentionBackend]:
    """Makes a backend known, before all that are; usable as a decorator. Its name replaces an equal one."""
    _registered[:] = [known for known in _registered if known.name != backend.name]
    _registered.insert(0, backend())
    return backend


def attention_backends(launches: Launches | None = None) -> tuple[AttentionBackend, ...]:
    """Returns the backends in the order in which they are asked; `launches` came with the model's entry."""
    # Each registers itself when it is imported; what a user registers is asked first.
    from graphkiln.core.ops import paged, plain

    built_in = (paged.PagedTriton(launches), plain.PlainTorch())
    names = {backend.name for backend in _registered}
    return (*_registered, *(backend for backend in built_in if backend.name not in names))


def choose_backend(
    layers: Iterable[AttentionLayer],
    dtype: torch.dtype,
    device: torch.device,
    name: str | None = None,
    *,
    launches: Launches | None = None,
) -> AttentionBackend:
    """Returns the first backend that computes every layer, or the one called `name`.

    `launches` are those that came with the model's entry. Raises NoAttentionBackend, with each one's
    refusal, when there is none.
    """
    layers = tuple(layers)
    refusals: dict[str, str] = {}
    for backend in attention_backends(launches):
        if name is not None and backend.name != name:
            continue
        found = next((why for layer in layers if (why := backend.refusal(layer, dtype, device))), None)
        if found is None:
            return backend
        refusals[backend.name] = found
    if name is not None and name not in refusals:
        refusals[name] = "no backend has this name"
    raise NoAttentionBackend(name, refusals)
