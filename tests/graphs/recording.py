"""A recorder for CPU tensors: it notes every operator call, and a replay makes them again in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeGraph:
    """Operator calls, each with the tensors that its results go to."""

    def __init__(self, recorder: FakeRecorder) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self._recorder = recorder

    def replay(self) -> None:
        self._recorder.replays += 1
        for function, args, kwargs, outputs in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(outputs), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class FakeRecorder:
    """What the code above a recorder can see of one.

    The recording `fail_at` cannot be begun, `fail_end_at` cannot be ended, counted from 1.

    An op of our own is not noted but gone into, so that it can break graphs as it does on a device.
    """

    def __init__(self, fail_at: int | None = None, fail_end_at: int | None = None) -> None:
        self.begun = self.ended = self.abandoned = self.replays = 0
        self._fail_at, self._fail_end_at = fail_at, fail_end_at
        self._mode: _Noting | None = None

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        yield

    def begin(self) -> None:
        self.begun += 1
        if self.begun == self._fail_at:
            raise torch.OutOfMemoryError("out of memory")
        if self._mode is None:
            self._mode = _Noting()
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        assert self._mode.graph is None
        self._mode.graph = FakeGraph(self)

    def end(self) -> FakeGraph:
        self.ended += 1
        if self.ended == self._fail_end_at:
            raise RuntimeError("the graph cannot be instantiated")
        return self._stop()

    def abandon(self) -> None:
        self.abandoned += 1
        if self._mode is not None:
            self._mode.graph = self._mode.graph or FakeGraph(self)
            self._stop()

    def weak(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    def _stop(self) -> FakeGraph:
        mode = self._mode
        assert mode is not None
        assert mode.graph is not None
        graph, mode.graph = mode.graph, None
        if not mode.inside:
            self._mode = None
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return graph


class _Noting(TorchDispatchMode):
    """Notes calls into `graph`; while an op of ours runs, `inside`, the mode is off torch's stack."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph: FakeGraph | None = None
        self.inside = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") == "graphkiln":
            self.inside = True
            try:
                return func(*args, **kwargs)
            finally:
                self.inside = False
        outputs = func(*args, **kwargs)
        assert self.graph is not None
        self.graph.calls.append((func, args, kwargs, outputs))
        return outputs
