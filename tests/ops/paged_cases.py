"""What the Triton kernels compute, on CPU tensors: run by `test_paged` under Triton's interpreter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from graphkiln.core.ops import paged
from graphkiln.core.ops.kv_cache import AttentionMetadata, build_metadata
from graphkiln.core.ops.layer import AttentionLayer
from tests.ops.sequences import CPU, Sequence, cache_for, step

BACKEND = paged.PagedTriton()
PLAIN = AttentionLayer("layer", heads=4, kv_heads=2, head_size=16, value_size=16, scale=0.3)
LAYERS = {
    "grouped heads": PLAIN,
    "three heads a group": replace(PLAIN, heads=3, kv_heads=1),
    "a window": replace(PLAIN, window=40),
    "a window of one": replace(PLAIN, window=1),
    "a softcap, and sizes that are no powers of two": replace(
        PLAIN, softcap=0.7, head_size=24, value_size=20, kv_heads=4
    ),
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("name", LAYERS)
def test_prefill_then_decode_equals_dense_attention(name: str) -> None:
    layer = LAYERS[name]
    caches, allocator = cache_for(layer, 30)
    # Longer than two tiles of keys, and than a block of queries.
    sequence = Sequence(layer, 72)
    got = step(layer, caches, allocator, [(sequence, 70)], backend=BACKEND)
    got += [step(layer, caches, allocator, [(sequence, 1)], 2, backend=BACKEND)[0] for _ in range(2)]
    torch.testing.assert_close(torch.cat(got), sequence.reference(layer).float())


def test_batches_that_mix_prefill_chunks_and_decodes_equal_each_alone() -> None:
    layer = replace(PLAIN, kv_heads=1, window=15, softcap=2.0, value_size=8)
    chance = random.Random(0)
    caches, allocator = cache_for(layer, 40)
    sequences = [Sequence(layer, length) for length in (1, 6, 30, 41)]
    outputs: dict[int, list[torch.Tensor]] = {index: [] for index in range(len(sequences))}
    while any(s.done < s.length for s in sequences):
        ready = [(i, s) for i, s in enumerate(sequences) if s.done < s.length and chance.random() < 0.8]
        work = [(s, chance.randint(1, min(20, s.length - s.done))) for _, s in ready]
        if not work:
            continue
        got = step(layer, caches, allocator, work, chance.randint(0, 3), backend=BACKEND)
        for (index, _), output in zip(ready, got, strict=True):
            outputs[index].append(output)
    for index, sequence in enumerate(sequences):
        torch.testing.assert_close(torch.cat(outputs[index]), sequence.reference(layer).float())


def test_a_padded_step_computes_its_requests_and_nothing_else() -> None:
    caches, allocator = cache_for(PLAIN, 30)
    sequences = [Sequence(PLAIN, length) for length in (9, 50)]
    for sequence in sequences:
        step(PLAIN, caches, allocator, [(sequence, sequence.length - 1)], backend=BACKEND)
        sequence.blocks += allocator.take(1)
    before = caches["layer"].key.clone()
    real = build_metadata([1, 1], [9, 50], [s.blocks for s in sequences], 4, CPU)
    width = real.block_table.shape[1]
    padded = AttentionMetadata(
        torch.cat([real.query_start_loc, real.query_start_loc[-1:].expand(3)]),
        torch.cat([real.seq_lens, torch.zeros(3, dtype=torch.int64)]),
        torch.cat([real.block_table, torch.full((3, width), -1)]),
        torch.cat([real.slot_mapping, torch.full((3,), -1)]),
        1,
    )
    got = step(PLAIN, caches, allocator, [(s, 1) for s in sequences], 3, backend=BACKEND, metadata=padded)
    for sequence, output in zip(sequences, got, strict=True):
        torch.testing.assert_close(output, sequence.reference(PLAIN)[-1:].float())
    slots = [
        index
        for index, (now, then) in enumerate(zip(*_slots(caches["layer"].key, before), strict=True))
        if not torch.equal(now.nan_to_num(), then.nan_to_num())
    ]
    assert slots == sorted(real.slot_mapping.tolist())


def _slots(*caches: torch.Tensor) -> list[torch.Tensor]:
    return [cache.flatten(0, 1) for cache in caches]


def test_float16_stays_within_its_rounding() -> None:
    # The interpreter computes no bfloat16.
    dtype = torch.float16
    caches, allocator = cache_for(PLAIN, 10, dtype=dtype)
    sequence = Sequence(PLAIN, 33, dtype)
    got = step(PLAIN, caches, allocator, [(sequence, 32)], backend=BACKEND)
    got += step(PLAIN, caches, allocator, [(sequence, 1)], backend=BACKEND)
    torch.testing.assert_close(torch.cat(got).double(), sequence.reference(PLAIN), atol=2e-2, rtol=2e-2)
