from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from graphkiln.core.ops import plain
from graphkiln.core.ops.errors import NoForwardContext, UnknownLayer
from graphkiln.core.ops.forward_context import ForwardContext, get_forward_context, set_forward_context
from graphkiln.core.ops.kv_cache import build_metadata
from graphkiln.core.ops.layer import AttentionLayer
from tests.ops.sequences import BLOCK, CPU, Sequence, cache_for, step

PLAIN = AttentionLayer("layer", heads=4, kv_heads=2, head_size=8, value_size=8, scale=0.3)
LAYERS = {
    "grouped heads": PLAIN,
    "as many key heads": replace(PLAIN, kv_heads=4),
    "a window": replace(PLAIN, window=3),
    "a window of one": replace(PLAIN, window=1),
    "a softcap": replace(PLAIN, softcap=0.7),
    "values of another size": replace(PLAIN, value_size=5),
    "all together": replace(PLAIN, kv_heads=1, window=5, softcap=2.0, value_size=3),
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("name", LAYERS)
def test_prefill_then_decode_equals_dense_attention(name: str) -> None:
    layer = LAYERS[name]
    caches, allocator = cache_for(layer, 5)
    sequence = Sequence(layer, 17)
    got = step(layer, caches, allocator, [(sequence, 9)])
    got += [step(layer, caches, allocator, [(sequence, 1)])[0] for _ in range(8)]
    torch.testing.assert_close(torch.cat(got), sequence.reference(layer).float())


@pytest.mark.parametrize("name", LAYERS)
def test_batches_that_mix_prefill_chunks_and_decodes_equal_each_alone(name: str) -> None:
    layer = LAYERS[name]
    chance = random.Random(0)
    caches, allocator = cache_for(layer, 20)
    sequences = [Sequence(layer, length) for length in (1, 6, 13, 20)]
    outputs: dict[int, list[torch.Tensor]] = {index: [] for index in range(len(sequences))}
    while any(s.done < s.length for s in sequences):
        ready = [(i, s) for i, s in enumerate(sequences) if s.done < s.length and chance.random() < 0.8]
        work = [(s, chance.randint(1, min(5, s.length - s.done))) for _, s in ready]
        if not work:
            continue
        for (index, _), output in zip(
            ready, step(layer, caches, allocator, work, chance.randint(0, 3)), strict=True
        ):
            outputs[index].append(output)
    for index, sequence in enumerate(sequences):
        torch.testing.assert_close(torch.cat(outputs[index]), sequence.reference(layer).float())


@pytest.mark.parametrize("name", LAYERS)
def test_scores_computed_in_parts_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS[name]
    sequence = Sequence(layer, 19)
    whole = step(layer, *cache_for(layer, 5), [(sequence, 19)])[0]
    monkeypatch.setattr(plain, "_MAX_SCORES", 4 * 19 * 3)
    sequence.done, sequence.blocks = 0, []
    torch.testing.assert_close(step(layer, *cache_for(layer, 5), [(sequence, 19)])[0], whole)


def test_blocks_given_back_serve_another_request() -> None:
    caches, allocator = cache_for(PLAIN, 3)
    for length in (12, 5, 9):
        sequence = Sequence(PLAIN, length)
        output = step(PLAIN, caches, allocator, [(sequence, length)])[0]
        torch.testing.assert_close(output, sequence.reference(PLAIN).float())
        allocator.give_back(sequence.blocks)


def test_an_op_outside_a_context_is_a_typed_error() -> None:
    with pytest.raises(NoForwardContext, match="unified_kv_cache_update"):
        torch.ops.graphkiln.unified_kv_cache_update(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), "layer")
    with pytest.raises(NoForwardContext):
        get_forward_context()


def test_a_layer_that_the_context_does_not_hold_is_named() -> None:
    caches, _ = cache_for(PLAIN, 1)
    metadata = build_metadata([1], [1], [[0]], BLOCK, CPU)
    with (
        set_forward_context(ForwardContext(caches, metadata, {"layer": PLAIN})),
        pytest.raises(UnknownLayer, match="'other'"),
    ):
        torch.ops.graphkiln.unified_kv_cache_update(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), "other")


def test_contexts_nest() -> None:
    caches, _ = cache_for(PLAIN, 1)
    metadata = build_metadata([1], [1], [[0]], BLOCK, CPU)
    outer = ForwardContext(caches, metadata, {"layer": PLAIN})
    inner = ForwardContext({}, metadata, {})
    with set_forward_context(outer):
        with set_forward_context(inner):
            assert get_forward_context() is inner
        assert get_forward_context() is outer


def test_shapes_are_enough_for_the_fake_implementations() -> None:
    key = torch.empty(5, 2, 8, device="meta")
    query = torch.empty(5, 4, 8, device="meta")
    written = torch.ops.graphkiln.unified_kv_cache_update(key, key, "layer")
    assert tuple(written.shape) == (0,)
    torch.ops.graphkiln.unified_attention_with_output(
        query, key, key, torch.empty_like(query), "layer", written
    )


def test_the_ops_follow_the_rules_of_torch_library() -> None:
    caches, _ = cache_for(PLAIN, 1)
    metadata = build_metadata([3], [3], [[0]], BLOCK, CPU)
    key, query = torch.randn(3, 2, 8), torch.randn(3, 4, 8)
    checks = ("test_schema", "test_faketensor")
    with set_forward_context(ForwardContext(caches, metadata, {"layer": PLAIN})):
        update = torch.ops.graphkiln.unified_kv_cache_update.default
        torch.library.opcheck(update, (key, key, "layer"), test_utils=checks)
        update(key, key, "layer")
        attend = torch.ops.graphkiln.unified_attention_with_output.default
        arguments = (query, key, key, torch.empty_like(query), "layer", None)
        torch.library.opcheck(attend, arguments, test_utils=checks)


def test_a_token_without_a_slot_is_left_out_wherever_it_stands() -> None:
    caches, _ = cache_for(PLAIN, 1)
    cache = caches["layer"]
    metadata = replace(build_metadata([3], [3], [[0]], BLOCK, CPU), slot_mapping=torch.tensor([2, -1, 0]))
    key = torch.arange(3.0).view(3, 1, 1).expand(3, 2, 8)
    plain.PlainTorch().write(PLAIN, cache, metadata, key, key + 10)
    assert cache.key[0, :3, 0, 0].nan_to_num(-1).tolist() == [2.0, -1.0, 0.0]
    assert cache.value[0, :3, 0, 0].nan_to_num(-1).tolist() == [12.0, -1.0, 10.0]
