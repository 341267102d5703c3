"""Paged attention in Triton: decode and mixed batches, in launches that a graph can hold."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from typing import Any

import torch

from graphkiln.core.ops.backends import AttentionBackend
from graphkiln.core.ops.kv_cache import AttentionMetadata, KVCache
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.support import AttentionSupport

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LARGEST_HEAD = 256
# Heads that share a key head are rows of one tile, of which a program has no more than this.
_LARGEST_GROUP = 64
_MOST_SPLITS = 32
# Bytes of keys that a program of decode reads at a time.
_TILE = 16384
# Where there is no device to ask: enough programs for the largest of today's.
_MULTIPROCESSORS = 132


class PagedTriton(AttentionBackend):
    """One kernel for requests of any lengths; with few requests, their keys are shared among programs.

    Launches depend on what a step is padded to and on nothing that is in device memory.
    """

    name = "triton"
    support = AttentionSupport.ALWAYS
    captures_write = True

    def refusal(self, layer: AttentionLayer, dtype: torch.dtype, device: torch.device) -> str | None:
        """Returns why a layer cannot be computed here, None when it can."""
        if device.type != "cuda":
            return f"it runs on CUDA devices, not on {device.type}"
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if not _can_compile():
            return "there is no C compiler, which Triton needs to launch a kernel"
        if dtype not in _DTYPES:
            return f"it computes {', '.join(map(_dtype_text, _DTYPES))}, not {_dtype_text(dtype)}"
        largest = max(layer.head_size, layer.value_size)
        if largest > _LARGEST_HEAD:
            return f"it has heads of up to {_LARGEST_HEAD}, {layer.name} has {largest}"
        group = layer.heads // layer.kv_heads
        if group > _LARGEST_GROUP:
            return f"up to {_LARGEST_GROUP} heads share a key head, in {layer.name} {group} do"
        return None

    def write(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Puts keys and values into their slots."""
        key, value = _dense_rows(key), _dense_rows(value)
        slots = metadata.slot_mapping
        _kernels().write_kernel[(key.shape[0],)](
            key,
            value,
            cache.key,
            cache.value,
            slots,
            slots.shape[0],
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            KV_HEADS=layer.kv_heads,
            HEAD_SIZE=layer.head_size,
            VALUE_SIZE=layer.value_size,
            BLOCK=min(1024, _power_of_two(layer.kv_heads * max(layer.head_size, layer.value_size))),
            num_warps=4,
        )

    def attend(
        self,
        layer: AttentionLayer,
        cache: KVCache,
        metadata: AttentionMetadata,
        query: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Fills `output`: in one launch, or in two where keys are split."""
        query = _dense_rows(query)
        shape = _shape(
            layer,
            query.element_size(),
            metadata.max_query_len,
            metadata.seq_lens.shape[0],
            query.shape[0],
            _processors(query.device),
        )
        kernels = _kernels()
        sums = stats = output
        if shape.splits > 1:
            rows = query.shape[0] * layer.heads * shape.splits
            sums = torch.empty(rows * layer.value_size, dtype=torch.float32, device=query.device)
            stats = torch.empty(rows * 2, dtype=torch.float32, device=query.device)
        kernels.attend_kernel[(shape.blocks, layer.kv_heads, shape.splits)](
            query,
            cache.key,
            cache.value,
            output,
            sums,
            stats,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            query.shape[0],
            metadata.seq_lens.shape[0],
            shape.splits,
            metadata.block_table.stride(0),
            query.stride(0),
            query.stride(1),
            output.stride(0),
            output.stride(1),
            layer.scale,
            layer.softcap or 1.0,
            KV_HEADS=layer.kv_heads,
            GROUP=layer.heads // layer.kv_heads,
            HEAD_SIZE=layer.head_size,
            VALUE_SIZE=layer.value_size,
            HEAD_PAD=_padded(layer.head_size),
            VALUE_PAD=_padded(layer.value_size),
            BLOCK_SIZE=cache.key.shape[1],
            WINDOW=layer.window or 0,
            SOFTCAP=layer.softcap is not None,
            BLOCK_M=shape.block_m,
            BLOCK_Q=shape.block_q,
            BLOCK_N=shape.block_n,
            ONE_BLOCK=shape.one_block,
            SPLIT=shape.splits > 1,
            # tf32, the default for float32, is further from the reference than bfloat16 may be.
            PRECISION="ieee" if query.dtype is torch.float32 else None,
            num_warps=shape.warps,
            num_stages=shape.stages,
        )
        if shape.splits > 1:
            kernels.join_kernel[(query.shape[0], layer.heads)](
                sums,
                stats,
                output,
                metadata.query_start_loc,
                metadata.seq_lens.shape[0],
                shape.splits,
                output.stride(0),
                output.stride(1),
                HEADS=layer.heads,
                VALUE_SIZE=layer.value_size,
                VALUE_PAD=_padded(layer.value_size),
                MOST_SPLITS=_MOST_SPLITS,
                num_warps=2,
            )


class _Shape:
    """How a batch is cut into programs: token blocks, tiles, and splits of the keys."""

    __slots__ = ("block_m", "block_n", "block_q", "blocks", "one_block", "splits", "stages", "warps")

    def __init__(
        self,
        layer: AttentionLayer,
        item: int,
        longest: int | None,
        requests: int,
        tokens: int,
        processors: int,
    ) -> None:
        group = layer.heads // layer.kv_heads
        row = _power_of_two(max(layer.head_size, layer.value_size)) * item
        least = max(16, _power_of_two(group))
        self.one_block = longest is not None and longest * group <= least
        self.splits, self.warps, self.stages = 1, 4, 2
        self.block_m = least
        if self.one_block:
            programs = max(1, requests) * layer.kv_heads
            while self.splits < _MOST_SPLITS and programs * self.splits < processors:
                self.splits *= 2
            # Swept on an H200, 512 and 4096 tokens: large tiles; a short context is to reach all splits.
            tile = _TILE if self.splits <= 4 else _TILE // 2
            self.block_n = min(128, max(32, tile // row))
        else:
            self.block_n = 64 if row <= 256 else 32
            if item < 4:
                self.block_m = max(least, 64 if row <= 256 else 32)
        self.block_q = self.block_m // group
        # With one block a request, each also has padding to clear: as many tokens as it may hold.
        self.blocks = max(requests, -(-tokens // self.block_q))
        if not self.one_block:
            self.blocks = tokens // self.block_q + requests


# A model's layers and the padded sizes are few: a step looks its shape up for each of its layers.
_shape = functools.lru_cache(maxsize=4096)(_Shape)


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


def _dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with each head's numbers side by side, copied only where they are not."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _padded(size: int) -> int:
    return max(16, _power_of_two(size))


def _dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
