"""Paged attention in Triton: decode and mixed batches, in launches that a graph can hold."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch

from graphkiln.core.ops.backends import AttentionBackend
from graphkiln.core.ops.errors import KernelNotSealed
from graphkiln.core.ops.kv_cache import AttentionMetadata, KVCache
from graphkiln.core.ops.launches import Launches
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.specialisations import (
    ALIGNMENT,
    MOST_COUNT,
    Specialisation,
    attend_call,
    cut,
    join_call,
    write_call,
)
from graphkiln.core.ops.support import AttentionSupport

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LARGEST_HEAD = 256
# Heads that share a key head are rows of one tile, of which a program has no more than this.
_LARGEST_GROUP = 64
# Where there is no device to ask: enough programs for the largest of today's.
_MULTIPROCESSORS = 132

_log = logging.getLogger(__name__)


class PagedTriton(AttentionBackend):
    """One kernel for requests of any lengths; with few requests, their keys are shared among programs.

    Launches depend on what a step is padded to and on nothing that is in device memory. What an entry
    brought, `launches`, is launched as it is, without Triton; where there is none, Triton compiles.
    """

    name = "triton"
    support = AttentionSupport.ALWAYS
    captures_write = True

    def __init__(self, launches: Launches | None = None) -> None:
        self._launches = Launches() if launches is None else launches
        self._told: set[Specialisation] = set()

    def refusal(self, layer: AttentionLayer, dtype: torch.dtype, device: torch.device) -> str | None:
        """Returns why a layer cannot be computed here, None when it can."""
        if device.type != "cuda":
            return f"it runs on CUDA devices, not on {device.type}"
        return unfit(layer, dtype) or (None if self._launches else _no_means())

    def write(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Puts keys and values into their slots."""
        key, value = _readable(key), _readable(value)
        slots = metadata.slot_mapping
        tensors = (key, value, cache.key, cache.value, slots)
        counts = (slots.shape[0], *key.stride()[:2], *value.stride()[:2])
        self._launch(write_call(layer, _dtypes(tensors)), (key.shape[0], 1, 1), tensors, counts)

    def attend(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        query: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Fills `output`: in one launch, or in two where keys are split."""
        query = _readable(query)
        tokens, requests = query.shape[0], metadata.seq_lens.shape[0]
        processors = _processors(query.device)
        shape = cut(layer, query.element_size(), metadata.max_query_len, requests, processors)
        sums = stats = output
        if shape.splits > 1:
            rows = tokens * layer.heads * shape.splits
            sums = torch.empty(rows * layer.value_size, dtype=torch.float32, device=query.device)
            stats = torch.empty(rows * 2, dtype=torch.float32, device=query.device)
        where = (metadata.query_start_loc, metadata.seq_lens, metadata.block_table)
        tensors = (query, cache.key, cache.value, output, sums, stats, *where)
        strides = (*query.stride()[:2], *output.stride()[:2])
        self._launch(
            attend_call(layer, cache.key.shape[1], shape, _dtypes(tensors)),
            (shape.blocks(tokens, requests), layer.kv_heads, shape.splits),
            tensors,
            (tokens, requests, shape.splits, metadata.block_table.stride(0), *strides),
            # An int would be another type, and a 1 a constant.
            (float(layer.scale), float(layer.softcap or 1.0)),
        )
        if shape.splits > 1:
            parts = (sums, stats, output, metadata.query_start_loc)
            counts = (requests, shape.splits, *output.stride()[:2])
            self._launch(join_call(layer, _dtypes(parts)), (tokens, layer.heads, 1), parts, counts)

    def _launch(
        self,
        call: Specialisation,
        grid: tuple[int, int, int],
        tensors: Sequence[torch.Tensor],
        counts: Sequence[int],
        scales: Sequence[float] = (),
    ) -> None:
        launches = self._launches
        if not launches:
            _compiled(call, grid, (*tensors, *counts, *scales))
            return
        launch = launches.find(call)
        unlike = _unlike(tensors, counts, launches.device)
        if launch is None or unlike is not None:
            why = unlike or launches.why_not(call)
            self._unsealed(call, grid, (*tensors, *counts, *scales), why)
            return
        stream = torch._C._cuda_getCurrentRawStream(launches.device)
        launch(*grid, *tensors, *counts, *scales, stream=stream)

    def _unsealed(
        self, call: Specialisation, grid: tuple[int, int, int], args: Sequence[Any], why: str
    ) -> None:
        """Has Triton compile what no entry brought. Raises KernelNotSealed where it cannot."""
        means = _no_means()
        if means is not None:
            raise KernelNotSealed(call.kernel, why, means)
        if call not in self._told:
            self._told.add(call)
            _log.warning("attention: the entry has no %s for this step, compiled now: %s", call.kernel, why)
        try:
            _compiled(call, grid, args)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            # Of the device, which may be about anything that it was asked before.
            raise
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise KernelNotSealed(call.kernel, why, text) from error


def unfit(layer: AttentionLayer, dtype: torch.dtype) -> str | None:
    """Returns what of a layer the kernels have no way for, on any device; None where they have one."""
    if dtype not in _DTYPES:
        return f"it computes {', '.join(map(_dtype_text, _DTYPES))}, not {_dtype_text(dtype)}"
    largest = max(layer.head_size, layer.value_size)
    if largest > _LARGEST_HEAD:
        return f"it has heads of up to {_LARGEST_HEAD}, {layer.name} has {largest}"
    group = layer.heads // layer.kv_heads
    if group > _LARGEST_GROUP:
        return f"up to {_LARGEST_GROUP} heads share a key head, in {layer.name} {group} do"
    return None


def _compiled(call: Specialisation, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
    """Launches through Triton, which compiles what it has not compiled before."""
    kernel = getattr(_kernels(), call.kernel)
    kernel[grid](*args, **dict(call.constants), num_warps=call.warps, num_stages=call.stages)


def _unlike(tensors: Sequence[torch.Tensor], counts: Sequence[int], device: int) -> str | None:
    """Returns what of a call sealed code does not take, beside what it was looked up by."""
    for place, tensor in enumerate(tensors):
        if tensor.data_ptr() % ALIGNMENT:
            return f"tensor {place} lies at no multiple of {ALIGNMENT}"
        if tensor.device.index != device:
            return f"tensor {place} lies on {tensor.device}, the code on cuda:{device}"
    return None if max(counts) <= MOST_COUNT else f"a count of {max(counts)} is above {MOST_COUNT}"


def _no_means() -> str | None:
    """Returns what Triton lacks here to compile and launch a kernel, None when it has all."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None if _can_compile() else "there is no C compiler, which Triton needs to launch a kernel"


@functools.cache
def _can_compile() -> bool:
    """Whether Triton finds what it compiles its launchers with: it looks in the same places."""
    named = os.environ.get("CC")
    return any(shutil.which(found) for found in ([named] if named else ["gcc", "clang"]))


@functools.cache
def _kernels() -> Any:
    # Here and not above: where Triton is missing, every other backend still works.
    from graphkiln.core.ops import triton_kernels

    return triton_kernels


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with each head's numbers side by side, at an address that vector loads can use.

    It is copied where it lies otherwise.
    """
    if tensor.stride(-1) != 1:
        return tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def _dtypes(tensors: Sequence[torch.Tensor]) -> tuple[torch.dtype, ...]:
    return tuple(tensor.dtype for tensor in tensors)


def _dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
