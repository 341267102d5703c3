"""What captures, replays and times graphs on a device, and what it tells: the one door to the device.

Everything above it is plain data in, plain data out, and runs with a capturer that is made up.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from graphkiln.core.graphs.descriptor import BatchDescriptor


class Way(enum.Enum):
    """How a step is run: the model's own code, the compiled code, or one of the two kinds of graph."""

    EAGER = "eager"
    COMPILED = "compiled"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of the device: `free` right now, of `total`; `held` by this process's allocator."""

    free: int
    total: int
    held: int = 0


@dataclass(frozen=True)
class Captured:
    """One descriptor's capture: device memory that it took in bytes, seconds with its warm-up, graphs.

    `graphs` counts what one step replays: a FULL capture is one graph, a PIECEWISE one a graph for each
    piece. A capture that found all its memory in the pool took 0 bytes.
    """

    descriptor: BatchDescriptor
    bytes: int
    seconds: float
    graphs: int = 1


@dataclass(frozen=True)
class Replayed:
    """A replay against eager, on the same fresh inputs: the worst absolute difference, and the limit."""

    descriptor: BatchDescriptor
    max_abs_error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether they agree; a NaN never does."""
        return self.max_abs_error <= self.tolerance


@dataclass(frozen=True)
class StepTime:
    """The median milliseconds of one step, and how many launches the host makes for it, where known."""

    way: Way
    num_tokens: int
    ms: float
    launches: int | None = None


class Capturer(Protocol):
    """Captures the graphs of one loaded model on one device.

    `graphkiln.core.graphs.capture.open_capturer(runner)` returns one. Nothing that it does may change
    what the runner serves, and after `release` its memory is back with the device.
    """

    def memory(self) -> DeviceMemory:
        """Returns what is free, with everything that the allocator merely keeps given back."""
        ...

    def capture(self, descriptor: BatchDescriptor) -> Captured:
        """Warms up and captures one descriptor. Raises OutOfGraphMemory, and keeps nothing of it then."""
        ...

    def replay(self, descriptor: BatchDescriptor, seed: int) -> Replayed:
        """Replays a captured descriptor on fresh inputs made from `seed`, and compares with eager."""
        ...

    def time(self, way: Way, descriptor: BatchDescriptor) -> StepTime:
        """Times a step. EAGER and COMPILED run the batch of a descriptor of mode NONE, unpadded."""
        ...

    def release(self) -> None:
        """Drops every graph that was captured, and the memory with it; capturing anew works after it."""
        ...
