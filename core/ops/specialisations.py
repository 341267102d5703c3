"""What each kernel of attention is compiled for, and which of that a deployment can ever ask for.

A launch looks its machine code up by what stands here, so that code which was made for something else
is never run: neither here nor in Triton, where everything else that a call brings decides no code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from graphkiln.core.ops.layer import AttentionLayer

# Addresses that machine code may take for granted; a tensor that lies elsewhere is another matter.
ALIGNMENT = 16
# Counts and strides are 32-bit numbers in machine code.
MOST_COUNT = 2**31 - 1
MOST_SPLITS = 32
# Bytes of keys that a program of decode reads at a time.
_TILE = 16384
_PIPELINE = 3


@dataclass(frozen=True)
class Specialisation:
    """Everything that decides a kernel's machine code beside the kernel itself and the device.

    `pointers` are the dtypes of its tensors, in order, each at a multiple of 16; `constants` its
    compile-time parameters. Its counts are 32-bit numbers of any value, its scales float32.
    """

    kernel: str
    pointers: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    warps: int
    stages: int

    def __post_init__(self) -> None:
        # Looked up at every launch of every step.
        object.__setattr__(self, "_hash", hash((self.kernel, self.pointers, self.constants)))

    def __hash__(self) -> int:
        found: int = self._hash  # type: ignore[attr-defined]
        return found

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**row, "pointers": list(self.pointers), "constants": dict(self.constants)}

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Specialisation:
        """Returns what `as_json` wrote, whatever order its constants have come to stand in."""
        constants = tuple(sorted(row["constants"].items()))
        return cls(str(row["kernel"]), tuple(row["pointers"]), constants, row["warps"], row["stages"])

    def difference(self, other: Specialisation) -> list[str]:
        """Returns what is not as in `other`, as clauses: what is here, and what is there."""
        there = dict(other.constants)
        found = [f"{name} {value!r} ({there.get(name)!r})" for name, value in self.constants
                 if there.get(name) != value]  # fmt: skip
        found += [f"tensor {place} {one} ({two})"
                  for place, (one, two) in enumerate(zip(self.pointers, other.pointers, strict=True))
                  if one != two]  # fmt: skip
        pairs = (("warps", self.warps, other.warps), ("stages", self.stages, other.stages))
        return found + [f"{name} {one} ({two})" for name, one, two in pairs if one != two]


@dataclass(frozen=True)
class LayerDtypes:
    """The dtypes of what a layer's two ops are called with."""

    query: torch.dtype
    key: torch.dtype
    value: torch.dtype
    output: torch.dtype

    @classmethod
    def all_of(cls, dtype: torch.dtype) -> LayerDtypes:
        """Returns one dtype for all."""
        return cls(dtype, dtype, dtype, dtype)


@dataclass(frozen=True)
class Cut:
    """How a batch is cut into programs: blocks of BLOCK_Q tokens, tiles of keys, splits of the keys."""

    block_m: int
    block_n: int
    block_q: int
    one_block: bool
    splits: int

    def blocks(self, tokens: int, requests: int) -> int:
        """Returns how many blocks of tokens there are."""
        if not self.one_block:
            return tokens // self.block_q + requests
        # With one block a request, each also has padding to clear: as many tokens as it may hold.
        return max(requests, -(-tokens // self.block_q))


# A model's layers and the padded sizes are few: a step looks its shape up for each of its layers.
@functools.lru_cache(maxsize=4096)
def cut(layer: AttentionLayer, item: int, longest: int | None, requests: int, processors: int) -> Cut:
    """Returns how a step of `requests` requests is cut, the longest of `longest` tokens (None: unknown).

    `item` is the size of an element in bytes, `processors` how many programs the device runs at a time.
    """
    group = layer.heads // layer.kv_heads
    row = power_of_two(max(layer.head_size, layer.value_size)) * item
    least = max(16, power_of_two(group))
    if longest is None or longest * group > least:
        small = 64 if row <= 256 else 32
        block_m = max(least, small) if item < 4 else least
        return Cut(block_m, small, block_m // group, False, 1)
    splits, programs = 1, max(1, requests) * layer.kv_heads
    while splits < MOST_SPLITS and programs * splits < processors:
        splits *= 2
    # Swept on an H200, 512 and 4096 tokens: large tiles; a short context is to reach all splits.
    tile = _TILE if splits <= 4 else _TILE // 2
    return Cut(least, min(128, max(32, tile // row)), least // group, True, splits)


@functools.lru_cache(maxsize=4096)
def write_call(layer: AttentionLayer, pointers: tuple[torch.dtype, ...]) -> Specialisation:
    """Returns what `write_kernel` is compiled for."""
    numbers = layer.kv_heads * max(layer.head_size, layer.value_size)
    constants = {
        "KV_HEADS": layer.kv_heads,
        "HEAD_SIZE": layer.head_size,
        "VALUE_SIZE": layer.value_size,
        "BLOCK": min(1024, power_of_two(numbers)),
    }
    return _made("write_kernel", pointers, constants, warps=4)


@functools.lru_cache(maxsize=4096)
def attend_call(
    layer: AttentionLayer, block_size: int, found: Cut, pointers: tuple[torch.dtype, ...]
) -> Specialisation:
    """Returns what `attend_kernel` is compiled for."""
    constants = {
        "KV_HEADS": layer.kv_heads,
        "GROUP": layer.heads // layer.kv_heads,
        "HEAD_SIZE": layer.head_size,
        "VALUE_SIZE": layer.value_size,
        "HEAD_PAD": _padded(layer.head_size),
        "VALUE_PAD": _padded(layer.value_size),
        "BLOCK_SIZE": block_size,
        "WINDOW": layer.window or 0,
        "SOFTCAP": layer.softcap is not None,
        "BLOCK_M": found.block_m,
        "BLOCK_Q": found.block_q,
        "BLOCK_N": found.block_n,
        "ONE_BLOCK": found.one_block,
        "SPLIT": found.splits > 1,
        # tf32, the default for float32, is further from the reference than bfloat16 may be.
        "PRECISION": "ieee" if pointers[0] is torch.float32 else None,
    }
    return _made("attend_kernel", pointers, constants, warps=4, stages=2)


@functools.lru_cache(maxsize=4096)
def join_call(layer: AttentionLayer, pointers: tuple[torch.dtype, ...]) -> Specialisation:
    """Returns what `join_kernel` is compiled for."""
    constants = {
        "HEADS": layer.heads,
        "VALUE_SIZE": layer.value_size,
        "VALUE_PAD": _padded(layer.value_size),
        "MOST_SPLITS": MOST_SPLITS,
    }
    return _made("join_kernel", pointers, constants, warps=2)


def reachable(
    layers: Iterable[tuple[AttentionLayer, LayerDtypes]],
    cache: torch.dtype,
    block_size: int,
    max_requests: int,
    processors: int,
) -> tuple[Specialisation, ...]:
    """Returns all that steps of up to `max_requests` requests can ask for, in a fixed order.

    `cache` is the dtype of the KV cache. Where tokens lie comes as int64, as a runner makes it.
    """
    found: dict[Specialisation, None] = {}
    # Of layers that differ by name alone, one says it for all.
    for layer, dtypes in dict.fromkeys((replace(layer, name=""), dtypes) for layer, dtypes in layers):
        for call in _of_layer(layer, dtypes, cache, block_size, max_requests, processors):
            found[call] = None
    return tuple(found)


def _of_layer(
    layer: AttentionLayer,
    dtypes: LayerDtypes,
    cache: torch.dtype,
    block_size: int,
    max_requests: int,
    processors: int,
) -> Iterator[Specialisation]:
    at, sums = torch.int64, torch.float32
    yield write_call(layer, (dtypes.key, dtypes.value, cache, cache, at))
    cuts = [cut(layer, dtypes.query.itemsize, None, 1, processors)]
    cuts += [
        cut(layer, dtypes.query.itemsize, 1, requests, processors) for requests in range(1, max_requests + 1)
    ]
    for one in dict.fromkeys(cuts):
        parts = sums if one.splits > 1 else dtypes.output
        held = (dtypes.query, cache, cache, dtypes.output, parts, parts, at, at, at)
        yield attend_call(layer, block_size, one, held)
        if one.splits > 1:
            yield join_call(layer, (sums, sums, dtypes.output, at))


def _made(
    kernel: str,
    pointers: tuple[torch.dtype, ...],
    constants: Mapping[str, Any],
    *,
    warps: int,
    stages: int = _PIPELINE,
) -> Specialisation:
    names = tuple(str(dtype).removeprefix("torch.") for dtype in pointers)
    return Specialisation(kernel, names, tuple(sorted(constants.items())), warps, stages)


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _padded(size: int) -> int:
    return max(16, power_of_two(size))
