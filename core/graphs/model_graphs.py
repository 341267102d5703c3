"""A model with graphs: wrappers around its forward and its pieces, and which graph serves a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from graphkiln.core.compile.execute import CompiledPart, RunnablePiece
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step
from graphkiln.core.graphs.dispatch import Dispatcher
from graphkiln.core.graphs.graph_set import GraphSet
from graphkiln.core.graphs.recorder import Recorder
from graphkiln.core.graphs.wrapper import BreakableGraphWrapper, CUDAGraphWrapper
from graphkiln.core.ops.forward_context import ForwardContext
from graphkiln.core.trace.decorator import serving_below

_STEP = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")


class ModelGraphs:
    """What a runner calls in place of its model's forward, once it may have graphs.

    PIECEWISE graphs are one for each compiled piece of `parts`, or, where `breakable`, segments of the
    forward between its breaks. FULL ones are one for the forward. Nothing is served by graphs before
    `serve` says which were captured.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        parts: Iterable[CompiledPart],
        recorder: Recorder,
        *,
        breakable: bool,
        argument_names: Iterable[str] = (),
    ) -> None:
        self.graphs = GraphSet(recorder)
        self.parts = () if breakable else tuple(parts)
        for part in self.parts:
            part.wrap_pieces(self._piece)
        names = tuple(argument_names)
        if breakable:
            forward = BreakableGraphWrapper(
                forward, self.graphs, name="the model", mode=CUDAGraphMode.PIECEWISE, argument_names=names
            )
        self.forward = CUDAGraphWrapper(
            forward,
            self.graphs,
            name="the model",
            mode=CUDAGraphMode.FULL,
            argument_names=names,
            watched=_watched,
        )
        self._dispatcher = Dispatcher(())

    def serve(self, captured: Iterable[BatchDescriptor], lora_cases: tuple[int, ...] = (0,)) -> None:
        """Lets steps be served by graphs that were captured."""
        self._dispatcher = Dispatcher(captured, lora_cases)

    def dispatch(self, step: Step) -> BatchDescriptor:
        """Returns what serves a step: a captured batch, or the step's own counts in mode NONE."""
        return self._dispatcher.dispatch(step)

    def release(self) -> None:
        """Drops every graph; steps run without from now on."""
        self._dispatcher = Dispatcher(())
        self.graphs.drop()

    def _piece(self, piece: RunnablePiece, name: str, argument_names: list[str]) -> CUDAGraphWrapper:
        # A capture check of the same part, made before, has left its wrappers.
        inner = piece.unwrap() if isinstance(piece, CUDAGraphWrapper) else piece
        return CUDAGraphWrapper(
            inner, self.graphs, name=name, mode=CUDAGraphMode.PIECEWISE, argument_names=argument_names
        )


def compiled_parts(forward: Callable[..., Any]) -> tuple[CompiledPart, ...]:
    """Returns the compiled parts behind a runner's forward, whatever was put around them; () for none.

    That is the forward itself, or, of a model's own forward, what serves the decorated modules below it.
    """
    # A decorated method has its object, and what it wraps has not.
    root = getattr(forward, "__self__", None)
    forward = inspect.unwrap(forward)
    root = root or getattr(forward, "__self__", None)
    below = serving_below(root) if isinstance(root, torch.nn.Module) else []
    behind = [forward, *(inspect.unwrap(one) for one in below)]
    return tuple(one for one in behind if isinstance(one, CompiledPart))


def longest_query(descriptor: BatchDescriptor) -> int | None:
    """Returns the most tokens of one request that a whole graph has to be right for; None: as they come."""
    if descriptor.mode is not CUDAGraphMode.FULL:
        return None
    return descriptor.uniform_token_count or descriptor.max_query_len or descriptor.num_tokens


def _watched(context: ForwardContext) -> dict[str, torch.Tensor]:
    """What a whole graph reads besides its arguments."""
    metadata = {name: getattr(context.metadata, name) for name in _STEP}
    caches = {
        f"the {kind} cache of {layer}": getattr(cache, kind)
        for layer, cache in context.kv_caches.items()
        for kind in ("key", "value")
    }
    return {**metadata, **caches}
