"""The capturer of a loaded model on the CUDA device that it lies on.

Tried on torch 2.11 with CUDA 13. Inputs are made from seeds. The runner's own caches are used, since a
graph is bound to them, and of these only blocks that no request holds.
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from graphkiln.core.compile.check import carried, compared
from graphkiln.core.compile.rounding import rounded_otherwise
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capturer import Captured, DeviceMemory, Replayed, StepTime, Way
from graphkiln.core.graphs.descriptor import BatchDescriptor, example_query_lens
from graphkiln.core.graphs.errors import NoCudaDevice, OutOfGraphMemory
from graphkiln.core.graphs.recorder import CudaRecorder, Recorder
from graphkiln.core.ops.kv_cache import blocks_needed
from graphkiln.core.runner import Batch, Runner
from graphkiln.core.step import Request

# Tokens that a request of an example step has in the cache already, where there is room.
_CONTEXT = 512
# A graph's last steps may be padding: so many requests at most are left out of a replay's batch.
_LEFT_OUT = 3
_WARMUPS, _STEPS = 3, 10
_LAUNCHES = ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync")


def open_capturer(runner: Runner, *, breakable: bool = False) -> CudaCapturer:
    """Returns the capturer of a runner. Raises NoCudaDevice for a model that lies elsewhere."""
    device = runner.served.device
    if device.type != "cuda":
        raise NoCudaDevice(str(device))
    return CudaCapturer(runner, CudaRecorder(device), breakable=breakable)


class CudaCapturer:
    """Captures, replays and times the graphs of one runner; `Capturer` says what each method does.

    Replays are compared with the model's own forward, op by op; a model that was restored from an entry
    has none, and is compared with its compiled code.
    """

    def __init__(self, runner: Runner, recorder: Recorder, *, breakable: bool = False) -> None:
        self._runner = runner
        self._device = runner.served.device
        self._model = runner.use_graphs(recorder, breakable=breakable)
        self.graphs = self._model.graphs
        self._plain = runner.plain_forward
        self.eager = runner.served.backbone.forward if not runner.served.restored else self._plain
        self._random = torch.Generator(self._device)
        self._fill_caches()
        # What a device keeps for ever is made now, so that `memory` does not count it later: the
        # workspace of the recording stream, and the code of the kernels.
        for tokens in (1, min(64, runner.deployment.max_num_seqs)):
            self._warm(BatchDescriptor(CUDAGraphMode.NONE, tokens, tokens))
        self.memory()

    def memory(self) -> DeviceMemory:
        """Returns what is free, with everything that the allocator merely keeps given back."""
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved(self._device)
        return DeviceMemory(*torch.cuda.mem_get_info(self._device), held)

    def capture(self, descriptor: BatchDescriptor) -> Captured:
        """Warms up and captures one descriptor. Raises OutOfGraphMemory, and keeps nothing of it then."""
        began = time.perf_counter()
        try:
            taken = self._capture(descriptor)
        except RuntimeError as error:
            self.graphs.drop(descriptor)
            # The allocator has an error of its own for it, the driver says it in words.
            if "out of memory" not in str(error):
                raise
            detail = str(error).partition(". ")[0]
            raise OutOfGraphMemory(descriptor.mode.name, descriptor.num_tokens, detail) from error
        seconds = time.perf_counter() - began
        return Captured(descriptor, taken, seconds, self.graphs.count(descriptor))

    def replay(self, descriptor: BatchDescriptor, seed: int) -> Replayed:
        """Replays a captured descriptor on fresh inputs made from `seed`, and compares with eager."""
        chance = random.Random(seed)
        lengths = self._lengths(descriptor)
        kept = max(1, len(lengths) - chance.randint(0, _LEFT_OUT))
        with self._batch(lengths[:kept], chance) as batch:
            plain = BatchDescriptor(CUDAGraphMode.NONE, sum(lengths[:kept]), kept)
            eager = self._runner.run(self._runner.prepare(batch, plain), plain, self.eager).clone()
            hidden = self._runner.run(self._runner.prepare(batch, descriptor), descriptor)
            found = Replayed(descriptor, *compared(hidden[: eager.shape[0]], eager))
            if found.ok or self._runner.served.restored:
                return found
            with rounded_otherwise(self._runner.served.backbone):
                rounded = self._runner.run(self._runner.prepare(batch, plain), plain, self.eager)
            return replace(found, tolerance=max(found.tolerance, carried(eager, rounded)))

    def time(self, way: Way, descriptor: BatchDescriptor) -> StepTime:
        """Times a step. EAGER and COMPILED run the batch of a descriptor of mode NONE, unpadded."""
        forward = {Way.EAGER: self.eager, Way.COMPILED: self._plain}.get(way)
        with self._batch(self._lengths(descriptor), random.Random(0)) as batch:
            inputs = self._runner.prepare(batch, descriptor)

            def step() -> None:
                self._runner.run(inputs, descriptor, forward)

            return StepTime(way, descriptor.num_tokens, _median_ms(step), _launches(step))

    def release(self) -> None:
        """Drops every graph that was captured, and the memory with it; capturing anew works after it."""
        self._model.release()
        self.memory()

    def _capture(self, descriptor: BatchDescriptor) -> int:
        """Captures a descriptor; returns the device memory that it took, in bytes."""
        plain = BatchDescriptor(CUDAGraphMode.NONE, descriptor.num_tokens, descriptor.num_reqs)
        with self._batch(self._lengths(descriptor), random.Random(0)) as batch:
            inputs = self._runner.prepare(batch, descriptor)
            with self.graphs.window():
                self._runner.run(inputs, plain)
                torch.cuda.synchronize(self._device)
                before, _ = torch.cuda.mem_get_info(self._device)
                self._runner.run(inputs, descriptor)
                torch.cuda.synchronize(self._device)
                after, _ = torch.cuda.mem_get_info(self._device)
        return max(0, before - after)

    def _warm(self, plain: BatchDescriptor) -> None:
        with self._batch(self._lengths(plain), random.Random(0)) as batch:
            inputs = self._runner.prepare(batch, plain)
            self._runner.run(inputs, plain, self.eager)
            with self.graphs.window():
                self._runner.run(inputs, plain)

    def _lengths(self, descriptor: BatchDescriptor) -> tuple[int, ...]:
        """The new tokens of each request of a step that fills a descriptor; without one, of decode."""
        limit = self._runner.deployment.max_num_seqs
        if descriptor.mode is CUDAGraphMode.NONE and descriptor.num_tokens <= limit:
            return (1,) * descriptor.num_tokens
        return example_query_lens(descriptor, limit)

    @contextlib.contextmanager
    def _batch(self, lengths: tuple[int, ...], chance: random.Random) -> Iterator[Batch]:
        """Lends free blocks to requests of `lengths` new tokens, with context as far as there is room."""
        runner, size = self._runner, self._runner.deployment.block_size
        share = runner.allocator.free // len(lengths)
        requests, taken = [], []
        try:
            for length in lengths:
                room = min(share * size, length + _CONTEXT, runner.served.max_model_len)
                end = chance.randint(max(length, room - size), max(length, room))
                blocks = runner.allocator.take(blocks_needed(end, size))
                taken += blocks
                tokens = tuple(chance.randrange(runner.served.vocab_size or 2) for _ in range(length))
                requests.append(Request(tokens, end - length, tuple(blocks)))
            yield Batch(tuple(requests))
        finally:
            runner.allocator.give_back(taken)

    def _fill_caches(self) -> None:
        """Writes noise into the blocks that example steps get; blocks in use are left alone."""
        limits, allocator = self._runner.deployment, self._runner.allocator
        context = limits.max_num_seqs * (blocks_needed(_CONTEXT, limits.block_size) + 2)
        wanted = context + blocks_needed(limits.max_num_batched_tokens, limits.block_size)
        # What is given back is what is taken next.
        blocks = allocator.take(min(wanted, allocator.free))
        allocator.give_back(blocks)
        at = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        for cache in self._runner.kv_caches().values():
            for tensor in (cache.key, cache.value):
                size = (at.numel(), *tensor.shape[1:])
                noise = torch.randn(size, generator=self._random, dtype=torch.float32, device=self._device)
                tensor[at] = noise.to(tensor.dtype)


def _median_ms(step: Callable[[], None]) -> float:
    """The median time of one step on the device, of steps one after the other."""
    for _ in range(_WARMUPS):
        step()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_STEPS + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return float(statistics.median(one.elapsed_time(next_one) for one, next_one in pairwise(marks)))


def _launches(step: Callable[[], None]) -> int | None:
    """How many times the host asks the device for something in one step, None where no tracing is there."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        step()
        torch.cuda.synchronize()
    rows: Any = seen.events() or ()
    count = sum(any(name in row.name for name in _LAUNCHES) for row in rows if row.name.startswith("cu"))
    return count or None
