"""Graphs around a callable: captured once for each batch descriptor, replayed for every step that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.addresses import difference, seen
from graphkiln.core.graphs.breakable import BreakableCapture
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import MovedTensor
from graphkiln.core.graphs.graph_set import GraphSet
from graphkiln.core.ops.forward_context import ForwardContext, current_forward_context


@dataclass
class _Held:
    """One captured batch: how it is replayed, what comes out, and what it was captured with until checked."""

    replay: Callable[[], None]
    outputs: Any
    graphs: int
    captured: Mapping[str, Any] | None


class CUDAGraphWrapper:
    """Calls `runnable`, or replays what it did before, as the forward context says.

    A context of another mode than `mode` (None: than any mode but NONE), or none at all, runs
    `runnable`. Outputs of a replay lie in memory that the next replay of any graph may use again.
    Nothing is copied in: callers keep their inputs where they were at the capture. The first replay of
    each descriptor holds them to that, by address, shape, strides and dtype, and raises MovedTensor.
    """

    def __init__(
        self,
        runnable: Callable[..., Any],
        graphs: GraphSet,
        *,
        name: str,
        mode: CUDAGraphMode | None,
        argument_names: Sequence[str] = (),
        watched: Callable[[ForwardContext], Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        self.runnable = runnable
        self.name = name
        self._graphs = graphs
        self._mode = mode
        self._argument_names = tuple(argument_names)
        self._watched = watched
        self._held: dict[BatchDescriptor, _Held] = {}
        graphs.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs, captures or replays."""
        context = current_forward_context()
        if context is None or context.descriptor is None or not self._serves(context.mode):
            return self.runnable(*args, **kwargs)
        held = self._held.get(context.descriptor)
        if held is None:
            return self._capture(context.descriptor, context, args, kwargs)
        if held.captured is not None:
            self._check(held.captured, context, args, kwargs)
            held.captured = None
        held.replay()
        return held.outputs

    def __getattr__(self, name: str) -> Any:
        # Whoever looks for what the callable has finds it here.
        return getattr(self.__dict__["runnable"], name)

    def unwrap(self) -> Callable[..., Any]:
        """Returns the callable inside, through any number of wrappers."""
        inner = self.runnable
        return inner.unwrap() if isinstance(inner, CUDAGraphWrapper) else inner

    def held(self, descriptor: BatchDescriptor) -> int:
        """Returns how many graphs one step of a descriptor replays here."""
        found = self._held.get(descriptor)
        return 0 if found is None else found.graphs

    def drop(self, descriptor: BatchDescriptor | None = None) -> None:
        """Forgets the graphs of one descriptor, or all."""
        if descriptor is None:
            self._held.clear()
        else:
            self._held.pop(descriptor, None)

    def _serves(self, mode: CUDAGraphMode) -> bool:
        return mode is not CUDAGraphMode.NONE if self._mode is None else mode is self._mode

    def _capture(self, descriptor: BatchDescriptor, context: ForwardContext, args: Any, kwargs: Any) -> Any:
        """Records one call; returns its real outputs, and keeps only where they lie."""
        self._graphs.require_window(self.name, descriptor)
        captured = seen(self._values(context, args, kwargs))
        outputs, replay, graphs = self._record(args, kwargs)
        weak = tree_map_only(torch.Tensor, self._graphs.recorder.weak, outputs)
        self._held[descriptor] = _Held(replay, weak, graphs, captured)
        return outputs

    def _record(self, args: Any, kwargs: Any) -> tuple[Any, Callable[[], None], int]:
        recorder = self._graphs.recorder
        recorder.begin()
        try:
            outputs = self.runnable(*args, **kwargs)
            graph = recorder.end()
        except BaseException:
            recorder.abandon()
            raise
        return outputs, graph.replay, 1

    def _check(self, captured: Mapping[str, Any], context: ForwardContext, args: Any, kwargs: Any) -> None:
        found = difference(captured, self._values(context, args, kwargs))
        if found is not None:
            raise MovedTensor(self.name, *found)

    def _values(self, context: ForwardContext, args: Any, kwargs: Any) -> dict[str, Any]:
        leaves = tree_leaves((args, kwargs))
        names = self._argument_names
        values = {
            names[index] if index < len(names) else f"argument {index}": leaf
            for index, leaf in enumerate(leaves)
        }
        return values if self._watched is None else {**values, **self._watched(context)}


class BreakableGraphWrapper(CUDAGraphWrapper):
    """The same around a forward with calls that break graphs: several graphs for one batch descriptor."""

    def _record(self, args: Any, kwargs: Any) -> tuple[Any, Callable[[], None], int]:
        with BreakableCapture(self._graphs.recorder) as capture:
            outputs = self.runnable(*args, **kwargs)
        return outputs, capture.replay, capture.graphs
