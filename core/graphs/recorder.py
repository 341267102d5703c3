"""Recording what a device is asked to do, and doing it again: the few calls that everything else is built on.

Tried on torch 2.11 with CUDA 13. `torch.cuda.graph` is not used: it waits for the device and empties the
allocator at every capture, and there are as many captures as pieces times sizes.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch


class Graph(Protocol):
    """What was recorded between a `begin` and its `end`."""

    def replay(self) -> None:
        """Does it again, on the current stream, with the same addresses."""
        ...


class Recorder(Protocol):
    """Records on one device; what is recorded is not run."""

    def stream(self) -> contextlib.AbstractContextManager[None]:
        """Inside, work goes where recording is possible, after all that was asked for before."""
        ...

    def begin(self) -> None:
        """Starts recording."""
        ...

    def end(self) -> Graph:
        """Ends recording and returns what was recorded."""
        ...

    def abandon(self) -> None:
        """Ends recording after a failure, if any goes on, and keeps nothing of it."""
        ...

    def weak(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor over the same memory that does not keep it from being used again."""
        ...


class CudaRecorder:
    """Records CUDA graphs into one pool of memory that all of them share, on the stream kept for that.

    A device has one such stream, whoever records, because each stream on which cuBLAS ever ran holds a
    workspace of tens of MiB. A pool can be shared because graphs are replayed one after the other, and
    what one leaves behind is read before the next runs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = _stream_of(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._alive: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._current: torch.cuda.CUDAGraph | None = None

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Inside, the recording stream is current; the one before waits for it at the end."""
        before = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            yield
        before.wait_stream(self._stream)

    def begin(self) -> None:
        """Starts a graph. Other threads may go on using the device."""
        if not self._alive:
            # A pool ends with its last graph, and torch takes none up again under the same name.
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._current = graph

    def end(self) -> Graph:
        """Ends the graph that was begun last."""
        graph = self._current
        assert graph is not None
        graph.capture_end()
        self._current = None
        self._alive.add(graph)
        return graph

    def abandon(self) -> None:
        """Ends the graph that was begun last and drops it, whatever state it is in."""
        graph, self._current = self._current, None
        if graph is None:
            return
        try:
            graph.capture_end()
        except RuntimeError:
            # A capture that the device has called invalid says so again when it is ended, and then leaves
            # the allocator as if it went on: what `capture_end` would have done is done here. One that was
            # ended and could not be made a graph has left the pool already, which torch refuses to do twice.
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.device.index or 0, self._pool)
            self._pool = torch.cuda.graph_pool_handle()
        graph.reset()

    def weak(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor over the same memory that does not own it."""
        if not tensor.numel():
            return torch.empty_like(tensor)
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        raw = torch.as_tensor(
            _Bytes(tensor.data_ptr(), (last + 1) * tensor.element_size()), device=tensor.device
        )
        return raw.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class _Bytes:
    """A run of device memory, told the way that array libraries tell one another."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }
