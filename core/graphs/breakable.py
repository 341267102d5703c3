"""CUDA graphs with breaks: one forward recorded as segments, with calls between them that stay calls.

This gives graphs for pieces without a compiler: what cannot be in a graph is decorated with
`breaks_graphs`, and everything around it is recorded.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._pytree import tree_map_only

from graphkiln.core.graphs.errors import NestedCapture
from graphkiln.core.graphs.recorder import Recorder

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Active(threading.local):
    """The capture that this thread is in."""

    capture: BreakableCapture | None = None


_active = _Active()


class BreakableCapture:
    """Records what runs inside `with`, as segments and the calls between them; `replay` runs them in order.

    `graphs` and `breaks` count them. Captures do not nest: NestedCapture.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._parts: list[Callable[[], Any]] = []
        self._recording = False
        self.graphs = self.breaks = 0

    def __enter__(self) -> BreakableCapture:
        if _active.capture is not None:
            raise NestedCapture()
        _active.capture = self
        try:
            self._begin()
        except BaseException:
            _active.capture = None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _active.capture = None
        if error is not None:
            self._abandon()
            return
        try:
            self._end()
        except BaseException:
            self._abandon()
            raise

    def replay(self) -> None:
        """Replays the segments, and makes the calls between them, in the order of their recording."""
        for part in self._parts:
            part()

    @property
    def recording(self) -> bool:
        """Whether a segment is open: not while a call between two segments runs."""
        return self._recording

    def make_break(self, function: Callable[..., Result], args: Any, kwargs: Any) -> Result:
        """Ends a segment, calls `function`, remembers the call for replays, and starts the next segment.

        Remembered tensors do not keep their memory: like the segments', it is used again.
        """
        self._end()
        result = function(*args, **kwargs)
        weak_args, weak_kwargs = tree_map_only(torch.Tensor, self._recorder.weak, (args, kwargs))
        self._parts.append(functools.partial(function, *weak_args, **weak_kwargs))
        self.breaks += 1
        self._begin()
        return result

    def _begin(self) -> None:
        self._recorder.begin()
        self._recording = True

    def _end(self) -> None:
        self._recording = False
        self._parts.append(self._recorder.end().replay)
        self.graphs += 1

    def _abandon(self) -> None:
        self._parts.clear()
        self._recording = False
        self._recorder.abandon()


def breaks_graphs(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Makes a function a call between two segments of a breakable capture; elsewhere it stays what it is.

    It has to leave what it computes in tensors that its caller gave it: what it returns belongs to the
    capturing call alone. Inside another such call it is part of that. Decorators with effects on the
    host go below this one.
    """

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        capture = _active.capture
        if capture is None or not capture.recording:
            return function(*args, **kwargs)
        return capture.make_break(function, args, kwargs)

    return call
