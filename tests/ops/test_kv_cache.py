from __future__ import annotations

import pickle

import pytest
import torch

from graphkiln.core.ops.errors import NoForwardContext, OutOfBlocks, UnknownLayer
from graphkiln.core.ops.kv_cache import BlockAllocator, blocks_needed, build_metadata, make_kv_caches
from graphkiln.core.ops.layer import AttentionLayer

CPU = torch.device("cpu")


def test_metadata_places_each_token_in_its_block() -> None:
    metadata = build_metadata([3, 1], [3, 6], [[4], [2, 0]], 4, CPU)
    assert metadata.query_start_loc.tolist() == [0, 3, 4]
    assert metadata.seq_lens.tolist() == [3, 6]
    assert metadata.block_table.tolist() == [[4, 0], [2, 0]]
    assert metadata.slot_mapping.tolist() == [16, 17, 18, 1]


@pytest.mark.parametrize(("query", "seq"), [(0, 3), (4, 3), (1, 9)])
def test_metadata_refuses_what_does_not_fit(query: int, seq: int) -> None:
    with pytest.raises(ValueError, match="do not fit 2 blocks of 4"):
        build_metadata([query], [seq], [[0, 1]], 4, CPU)


def test_caches_have_a_shape_for_each_layer() -> None:
    layers = [AttentionLayer("a", 4, 2, 16, 12, 0.25), AttentionLayer("b", 4, 4, 8, 8, 0.25)]
    caches = make_kv_caches(layers, 3, 16, torch.bfloat16, CPU)
    assert [(tuple(c.key.shape), tuple(c.value.shape)) for c in caches.values()] == [
        ((3, 16, 2, 16), (3, 16, 2, 12)),
        ((3, 16, 4, 8), (3, 16, 4, 8)),
    ]
    assert list(caches) == ["a", "b"]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_are_rounded_up(tokens: int, blocks: int) -> None:
    assert blocks_needed(tokens, 16) == blocks


def test_blocks_are_handed_out_once_and_come_back() -> None:
    allocator = BlockAllocator(4)
    first, second = allocator.take(3), allocator.take(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    with pytest.raises(OutOfBlocks, match="0 free blocks, 1 are needed"):
        allocator.take(1)
    allocator.give_back(first)
    with pytest.raises(OutOfBlocks):
        allocator.take(4)
    assert allocator.free == 3
    assert sorted(allocator.take(3)) == sorted(first)


def test_a_cache_of_a_billion_blocks_costs_nothing_until_they_are_taken() -> None:
    allocator = BlockAllocator(10**12)
    assert allocator.take(2) == [0, 1]
    assert allocator.free == 10**12 - 2


@pytest.mark.parametrize("error", [NoForwardContext("op"), UnknownLayer("x", ("a",)), OutOfBlocks(3, 1)])
def test_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
