"""What a step's attention needs and the graph must not hold: caches and metadata."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.ops.backends import AttentionBackend
from graphkiln.core.ops.errors import NoForwardContext
from graphkiln.core.ops.kv_cache import AttentionMetadata, KVCache
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.plain import PlainTorch


@dataclass(frozen=True)
class ForwardContext:
    """The caches and the layers' facts by layer name, and where this step's tokens lie.

    `mode` is NONE, PIECEWISE or FULL: which graphs serve the step or are captured by it; `descriptor`
    is the batch that they were captured for. `backend` computes the attention.
    """

    kv_caches: Mapping[str, KVCache]
    metadata: AttentionMetadata
    layers: Mapping[str, AttentionLayer]
    backend: AttentionBackend = field(default_factory=PlainTorch)
    mode: CUDAGraphMode = CUDAGraphMode.NONE
    descriptor: BatchDescriptor | None = None


_current: contextvars.ContextVar[ForwardContext | None] = contextvars.ContextVar(
    "graphkiln_forward_context", default=None
)


@contextlib.contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[None]:
    """The attention ops called inside use `context`."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def current_forward_context() -> ForwardContext | None:
    """Returns the context that is set, None when there is none."""
    return _current.get()


def get_forward_context(op: str = "an attention op") -> ForwardContext:
    """Returns the context that is set; raises NoForwardContext, naming `op`, when there is none."""
    context = _current.get()
    if context is None:
        raise NoForwardContext(op)
    return context
