"""A device that is made up: it has so much memory, and graphs that take what a simple rule says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capturer import Captured, DeviceMemory, Replayed, StepTime, Way
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.errors import OutOfGraphMemory

MIB = 1 << 20
# What the first capture takes beside its tensors, and every graph's own share.
_FIXED, _EACH = 64 * MIB, 4 * MIB
_TOKEN = MIB


def step_ms(way: Way, tokens: int) -> float:
    """Returns made-up milliseconds: the host costs most in eager, the work grows with the tokens."""
    host = {Way.EAGER: 14.0, Way.COMPILED: 4.0, Way.PIECEWISE: 0.6, Way.FULL: 0.2}[way]
    work = 1.2 + 0.02 * tokens
    return max(host, work) if way in (Way.EAGER, Way.COMPILED) else host + work


@dataclass
class MadeCapturer:
    """Keeps a pool that grows to the largest graph, and refuses what does not fit into `free` bytes."""

    free: int = 1 << 40
    ms: Callable[[Way, int], float] = step_ms
    error: Mapping[int, float] = field(default_factory=dict)
    wrong: BatchDescriptor | None = None
    leaks: int = 0
    keeps: int = 0
    lost: int = 0
    kept: int = 0
    order: list[BatchDescriptor] = field(default_factory=list)
    replayed: list[BatchDescriptor] = field(default_factory=list)
    held: dict[BatchDescriptor, int] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        return sum(self.held.values())

    def memory(self) -> DeviceMemory:
        return DeviceMemory(self.free - self.taken - self.kept, 1 << 41, self.lost)

    def capture(self, descriptor: BatchDescriptor) -> Captured:
        pool = max((one.num_tokens for one in self.held), default=0)
        need = _EACH + max(0, descriptor.num_tokens - pool) * _TOKEN + (0 if self.held else _FIXED)
        if self.taken + need > self.free:
            raise OutOfGraphMemory(descriptor.mode.name, descriptor.num_tokens, "the made-up device is full")
        self.held[descriptor] = need
        self.order.append(descriptor)
        return Captured(descriptor, need, 0.01, 1 if descriptor.mode is CUDAGraphMode.FULL else 31)

    def replay(self, descriptor: BatchDescriptor, seed: int) -> Replayed:
        assert descriptor in self.held
        self.replayed.append(descriptor)
        error = self.error.get(descriptor.num_tokens, 1.0 if descriptor == self.wrong else 1e-3)
        return Replayed(descriptor, error, 1e-2)

    def time(self, way: Way, descriptor: BatchDescriptor) -> StepTime:
        assert (descriptor.mode is CUDAGraphMode.NONE) == (way in (Way.EAGER, Way.COMPILED))
        launches = {Way.EAGER: 800, Way.COMPILED: 300, Way.PIECEWISE: 63, Way.FULL: 1}[way]
        return StepTime(way, descriptor.num_tokens, self.ms(way, descriptor.num_tokens), launches)

    def release(self) -> None:
        if self.held:
            self.free -= self.leaks
            self.lost += self.leaks
            self.kept = self.keeps
        self.held.clear()
