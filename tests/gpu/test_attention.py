"""The Triton op on a device, against the plain one in float64 on the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from graphkiln.core.ops.backends import choose_backend
from graphkiln.core.ops.kv_cache import AttentionMetadata, build_metadata
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.paged import PagedTriton
from graphkiln.core.ops.plain import PlainTorch
from tests.ops.sequences import Sequence, cache_for, step

pytestmark = pytest.mark.gpu

# Of the norm of the reference: what the rounding of each type leaves after sums of hundreds of terms.
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
BASE = AttentionLayer("layer", heads=8, kv_heads=2, head_size=64, value_size=64, scale=0.125)
LAYERS = {
    "head size 64": BASE,
    "head size 80": replace(BASE, head_size=80, value_size=80),
    "head size 96": replace(BASE, head_size=96, value_size=96),
    "head size 128": replace(BASE, head_size=128, value_size=128),
    "head size 256": replace(BASE, heads=4, head_size=256, value_size=256, scale=0.06),
    "values of another size": replace(BASE, head_size=96, value_size=64),
    "as many key heads": replace(BASE, kv_heads=8),
    "three heads a group": replace(BASE, heads=9, kv_heads=3),
    "one key head": replace(BASE, heads=32, kv_heads=1),
    "a window": replace(BASE, window=100),
    "a softcap": replace(BASE, softcap=2.0),
    "a window and a softcap": replace(BASE, window=33, softcap=30.0, head_size=256, value_size=256),
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def exact(sequence: Sequence) -> Sequence:
    twin = copy.copy(sequence)
    twin.query, twin.key, twin.value = sequence.query.double(), sequence.key.double(), sequence.value.double()
    twin.blocks = []
    return twin


def error(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    one, other = torch.cat(got).double(), torch.cat(wanted)
    return float((one - other).norm() / other.norm())


# Each dtype makes other kernels, which take seconds to compile: all layers in one, the extremes in all.
EXTREMES = ("head size 64", "head size 256", "values of another size", "a window and a softcap")
CASES = [(name, dtype) for name in LAYERS for dtype in LIMITS if dtype is torch.bfloat16 or name in EXTREMES]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_prefill_decode_and_mixed_batches_equal_float64(name: str, dtype: torch.dtype) -> None:
    layer, device = LAYERS[name], torch.device("cuda", 0)
    backend = choose_backend([layer], dtype, device)
    assert isinstance(backend, PagedTriton)
    sequences = [Sequence(layer, length, dtype, device) for length in (700, 1, 35, 260, 129)]
    twins = [exact(sequence) for sequence in sequences]
    caches, allocator = cache_for(layer, 90, block_size=16, dtype=dtype, device=device)
    exact_caches, exact_allocator = cache_for(layer, 90, block_size=16, dtype=torch.float64, device=device)
    plan = [
        ([650, 1, 0, 0, 0], 3),
        ([1, 0, 34, 255, 0], 0),
        ([1, 0, 1, 1, 128], 5),
        ([1, 0, 0, 1, 1], 0),
        ([1, 0, 0, 0, 0], 2),
        ([4, 0, 0, 2, 0], 1),
    ]
    for counts, padding in plan:
        wanted = step(
            layer, exact_caches, exact_allocator,
            [(s, n) for s, n in zip(twins, counts, strict=True) if n], padding, backend=PlainTorch(),
        )  # fmt: skip
        got = step(
            layer, caches, allocator,
            [(s, n) for s, n in zip(sequences, counts, strict=True) if n], padding, backend=backend,
        )  # fmt: skip
        assert error(got, wanted) < LIMITS[dtype], counts


@pytest.mark.parametrize("requests", [1, 7, 64, 150])
@pytest.mark.parametrize("context", [1, 512, 3000])
def test_decode_of_any_width_equals_float64(requests: int, context: int) -> None:
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    layer = replace(BASE, heads=4, kv_heads=1)
    blocks = -(-(context + requests) // 16) * requests
    caches, allocator = cache_for(layer, blocks, block_size=16, dtype=dtype, device=device)
    exact_caches, exact_allocator = cache_for(
        layer, blocks, block_size=16, dtype=torch.float64, device=device
    )
    # Requests of different lengths, so that their splits of the keys differ.
    sequences = [Sequence(layer, max(1, context - 3 * at), dtype, device) for at in range(requests)]
    twins = [exact(sequence) for sequence in sequences]
    longer = [sequence for sequence in sequences if sequence.length > 1]
    for backend, several, held, pool in (
        (PagedTriton(), sequences, caches, allocator),
        (PlainTorch(), twins, exact_caches, exact_allocator),
    ):
        work = [(s, s.length - 1) for s in several if s.length > 1]
        if longer:
            step(layer, held, pool, work, backend=backend)
    got = step(layer, caches, allocator, [(s, 1) for s in sequences], backend=PagedTriton())
    wanted = step(layer, exact_caches, exact_allocator, [(s, 1) for s in twins], backend=PlainTorch())
    assert error(got, wanted) < LIMITS[dtype]


def test_a_captured_launch_serves_other_lengths_of_its_padded_size() -> None:
    device, dtype, layer = torch.device("cuda", 0), torch.bfloat16, BASE
    caches, allocator = cache_for(layer, 200, block_size=16, dtype=dtype, device=device)
    for cache in caches.values():
        cache.key.normal_()
        cache.value.normal_()
    blocks = [allocator.take(40) for _ in range(4)]
    backend = PagedTriton()
    query = torch.randn(4, layer.heads, layer.head_size, device=device, dtype=dtype)
    output = torch.empty_like(query)

    def padded(lengths: list[int]) -> AttentionMetadata:
        real = build_metadata([1] * len(lengths), lengths, blocks[: len(lengths)], 16, device)
        extra = 4 - len(lengths)
        return AttentionMetadata(
            torch.cat([real.query_start_loc, real.query_start_loc[-1:].expand(extra)]),
            torch.cat([real.seq_lens, real.seq_lens.new_zeros(extra)]),
            torch.cat([real.block_table, real.block_table.new_zeros(extra, 40)]),
            torch.cat([real.slot_mapping, real.slot_mapping.new_full((extra,), -1)]),
            1,
        )

    static = padded([5, 600, 33, 64])
    backend.attend(layer, caches["layer"], static, query, output)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.attend(layer, caches["layer"], static, query, output)
    for lengths in ([1, 2, 3, 4], [640, 640], [100], [17, 500, 1, 639]):
        now = padded(lengths)
        for name in ("query_start_loc", "seq_lens", "block_table", "slot_mapping"):
            getattr(static, name).copy_(getattr(now, name))
        output.fill_(float("nan"))
        graph.replay()
        wanted = torch.empty_like(query)
        PlainTorch().attend(layer, caches["layer"], now, query, wanted)
        torch.testing.assert_close(output, wanted, atol=2e-2, rtol=2e-2)
