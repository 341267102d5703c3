"""All graphs of one model: when they may be captured, who holds them, and how they are dropped."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Protocol

from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import CaptureRefused
from graphkiln.core.graphs.recorder import Recorder


class Holder(Protocol):
    """What holds captured graphs."""

    def held(self, descriptor: BatchDescriptor) -> int:
        """Returns how many graphs one step of a descriptor replays here."""
        ...

    def drop(self, descriptor: BatchDescriptor | None = None) -> None:
        """Forgets the graphs of one descriptor, or all."""
        ...


class GraphSet:
    """The graphs that one recorder made, and the window outside which none is captured.

    A step that finds no graph while a model serves is an error of whoever dispatched it: it would
    record for tens of milliseconds, and into memory that nobody counted.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._open = False
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def add(self, holder: Holder) -> None:
        """Makes a holder known; it is not kept alive."""
        self._holders.add(holder)

    @contextlib.contextmanager
    def window(self) -> Iterator[None]:
        """Inside, graphs may be captured, on the recorder's stream, and no garbage is collected.

        A collection can give device memory back in the middle of a capture, which ends it.
        """
        collects = gc.isenabled()
        gc.disable()
        self._open = True
        try:
            with self.recorder.stream():
                yield
        finally:
            self._open = False
            if collects:
                gc.enable()

    def require_window(self, name: str, descriptor: BatchDescriptor) -> None:
        """Raises CaptureRefused outside the window."""
        if not self._open:
            raise CaptureRefused(name, descriptor.mode.name, descriptor.num_tokens)

    def count(self, descriptor: BatchDescriptor) -> int:
        """Returns how many graphs one step of a descriptor replays."""
        return sum(holder.held(descriptor) for holder in self._holders)

    def drop(self, descriptor: BatchDescriptor | None = None) -> None:
        """Forgets the graphs of one descriptor, or all of them."""
        for holder in self._holders:
            holder.drop(descriptor)
