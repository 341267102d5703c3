"""What attention is compiled for: all that steps ask for, and nothing else is ever launched."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphkiln.core.ops import paged
from graphkiln.core.ops.backends import attention_backends
from graphkiln.core.ops.errors import KernelNotSealed
from graphkiln.core.ops.kv_cache import AttentionMetadata, build_metadata, make_kv_caches
from graphkiln.core.ops.launches import Launches
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.paged import PagedTriton
from graphkiln.core.ops.specialisations import ALIGNMENT, LayerDtypes, Specialisation, cut, reachable

CPU, BF16 = torch.device("cpu"), torch.bfloat16
LAYER = AttentionLayer("layer", heads=8, kv_heads=2, head_size=16, value_size=16, scale=0.25)
LAYERS = (
    LAYER,
    replace(LAYER, name="a window", window=5),
    replace(LAYER, name="a softcap", softcap=3.0, value_size=24),
    replace(LAYER, name="wide", heads=96, kv_heads=2, head_size=128, value_size=128),
)
BLOCK, MOST, PROCESSORS = 16, 150, 132
# Their launches lie on no device, like CPU tensors.
HERE: Any = None


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Specialisation, tuple[Any, ...]]]:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(paged, "_no_means", lambda: "nothing compiles in this test")
    return []


def sealed(
    launched: list[tuple[Specialisation, tuple[Any, ...]]], *layers: AttentionLayer, most: int = MOST
) -> PagedTriton:
    """A backend that holds what deployments of up to `most` requests can ask for, and notes its launches."""
    usual = LayerDtypes.all_of(BF16)
    wanted = reachable([(layer, usual) for layer in layers], BF16, BLOCK, most, PROCESSORS)

    def launch(one: Specialisation) -> Callable[..., None]:
        return lambda *args, stream: launched.append((one, args))

    launches = Launches()
    launches.put({one: launch(one) for one in wanted}, HERE, {})
    return PagedTriton(launches)


def run(
    backend: PagedTriton,
    layer: AttentionLayer,
    lengths: list[int],
    *,
    metadata: AttentionMetadata | None = None,
    crooked: bool = False,
) -> None:
    tokens, ends = sum(lengths), [length + 3 for length in lengths]
    blocks = [list(range(-(-end // BLOCK))) for end in ends]
    metadata = metadata or build_metadata(lengths, ends, blocks, BLOCK, CPU)
    cache = make_kv_caches([layer], 8, BLOCK, BF16, CPU)[layer.name]
    sizes = (
        layer.heads * layer.head_size,
        layer.kv_heads * layer.head_size,
        layer.kv_heads * layer.value_size,
    )
    held = torch.empty(tokens * sum(sizes) + 1, dtype=BF16)[1 if crooked else 0 :][: tokens * sum(sizes)]
    rows = held.view(tokens, sum(sizes)).split(sizes, 1)
    query, key, value = (
        row.view(tokens, -1, size)
        for row, size in zip(rows, (layer.head_size, layer.head_size, layer.value_size), strict=True)
    )
    output = torch.empty(tokens, layer.heads, layer.value_size, dtype=BF16)
    backend.write(layer, cache, metadata, key, value)
    backend.attend(layer, cache, metadata, query, output)


def test_every_step_of_a_deployment_finds_its_code(launched: list[Any]) -> None:
    backend, chance = sealed(launched, *LAYERS), random.Random(0)
    for requests in (1, 2, 3, 4, 8, 16, 33, 34, 66, 67, MOST):
        for layer in LAYERS:
            # Decode, drafts, a prefill beside decodes, and prefills alone.
            for lengths in ([1] * requests, [3] * requests, [1] * (requests - 1) + [chance.randint(2, 90)]):
                run(backend, layer, lengths)
    kernels = {one.kernel for one, _ in launched}
    assert kernels == {"write_kernel", "attend_kernel", "join_kernel"}
    splits = {dict(one.constants)["SPLIT"] for one, _ in launched if one.kernel == "attend_kernel"}
    assert splits == {False, True}


def test_a_step_beyond_the_deployment_names_what_has_no_code(launched: list[Any]) -> None:
    # With few requests keys are always split, and one that is not was not made.
    backend = sealed(launched, LAYER, most=2)
    run(backend, LAYER, [1, 1])
    with pytest.raises(
        KernelNotSealed, match=r"no attend_kernel for this step \(.*SPLIT False \(True\)"
    ) as caught:
        run(backend, LAYER, [1] * 100)
    assert "nothing compiles in this test" in str(caught.value)
    assert caught.value.kernel == "attend_kernel"


def test_positions_of_another_type_have_no_code(launched: list[Any]) -> None:
    wide = build_metadata([1], [1], [[0]], BLOCK, CPU)
    narrow = AttentionMetadata(
        wide.query_start_loc.int(), wide.seq_lens.int(), wide.block_table.int(), wide.slot_mapping.int(), 1
    )
    with pytest.raises(KernelNotSealed, match=r"write_kernel .*tensor 4 int32 \(int64\)"):
        run(sealed(launched, LAYER), LAYER, [1], metadata=narrow)


def test_what_lies_crooked_is_copied_or_refused_and_never_launched(launched: list[Any]) -> None:
    backend = sealed(launched, LAYER)
    run(backend, LAYER, [5], crooked=True)
    tensors = [arg for _, args in launched for arg in args if isinstance(arg, torch.Tensor)]
    assert tensors
    assert not any(tensor.data_ptr() % ALIGNMENT for tensor in tensors)

    metadata = build_metadata([1], [1], [[0]], BLOCK, CPU)
    slots = torch.zeros(2, dtype=torch.int64)[1:]
    if slots.data_ptr() % ALIGNMENT == 0:
        slots = torch.zeros(3, dtype=torch.int64)[2:]
    crooked = replace(metadata, slot_mapping=slots)
    with pytest.raises(KernelNotSealed, match="tensor 4 lies at no multiple of 16"):
        run(backend, LAYER, [1], metadata=crooked)


def test_code_of_another_device_and_counts_that_do_not_fit_are_refused(launched: list[Any]) -> None:
    tensor = torch.zeros(4)
    assert paged._unlike([tensor], [2**31 - 1], HERE) is None
    assert "a count of 2147483648" in str(paged._unlike([tensor], [2**31], HERE))
    assert "tensor 0 lies on cpu, the code on cuda:1" in str(paged._unlike([tensor], [1], 1))


def test_scales_are_floats_whatever_they_were_given_as(launched: list[Any]) -> None:
    # An int 1 would be a constant of other code.
    layer = replace(LAYER, scale=1, softcap=2)
    run(sealed(launched, layer), layer, [1])
    (args,) = [args for one, args in launched if one.kernel == "attend_kernel"]
    assert [(type(value), value) for value in args[-2:]] == [(float, 1.0), (float, 2.0)]


def test_where_triton_can_compile_it_does_and_says_so_once(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(paged, "_no_means", lambda: None)
    monkeypatch.setattr(paged, "_compiled", lambda call, grid, args: compiled.append(call.kernel))
    backend = sealed(launched, LAYER, most=1)
    with caplog.at_level(logging.WARNING):
        run(backend, LAYER, [1] * 100)
        run(backend, LAYER, [1] * 101)
    assert compiled == ["attend_kernel", "attend_kernel"]
    assert len(caplog.records) == 1
    assert "compiled now: " in caplog.text


def test_an_assembler_that_refuses_is_one_clear_error(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*args: Any) -> None:
        raise RuntimeError("ptxas exited with 77")

    monkeypatch.setattr(paged, "_no_means", lambda: None)
    monkeypatch.setattr(paged, "_compiled", refuses)
    with pytest.raises(KernelNotSealed, match="RuntimeError: ptxas exited with 77"):
        run(sealed(launched, LAYER, most=1), LAYER, [1] * 100)


def test_a_device_without_memory_is_not_told_as_a_compiler_that_refuses(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(paged, "_no_means", lambda: None)
    monkeypatch.setattr(paged, "_compiled", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(sealed(launched, LAYER, most=1), LAYER, [1] * 100)


def test_with_code_at_hand_no_compiler_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "_no_means", lambda: "there is no C compiler")
    cuda = torch.device("cuda")
    assert PagedTriton().refusal(LAYER, BF16, cuda) == "there is no C compiler"
    assert sealed([], LAYER).refusal(LAYER, BF16, cuda) is None


def test_it_comes_back_from_json_as_it_was() -> None:
    for one in reachable([(LAYERS[3], LayerDtypes.all_of(torch.float32))], BF16, BLOCK, MOST, PROCESSORS):
        row = json.loads(json.dumps(one.as_json()))
        row["constants"] = dict(reversed(row["constants"].items()))
        again = Specialisation.of_json(row)
        assert again == one
        assert hash(again) == hash(one)


def test_layers_that_differ_by_name_alone_are_gone_through_once() -> None:
    usual = LayerDtypes.all_of(BF16)
    one = reachable([(LAYER, usual)], BF16, BLOCK, MOST, PROCESSORS)
    before = cut.cache_info()
    many = [(replace(LAYER, name=f"layer {number}"), usual) for number in range(80)]
    assert reachable(many, BF16, BLOCK, MOST, PROCESSORS) == one
    after = cut.cache_info()
    assert after.hits + after.misses - before.hits - before.misses == MOST + 1


@pytest.mark.parametrize("change", [{"warps": 8}, {"stages": 1}, {"kernel": "join_kernel"}])
def test_any_difference_makes_it_another(change: dict[str, Any]) -> None:
    one = reachable([(LAYER, LayerDtypes.all_of(BF16))], BF16, BLOCK, 1, PROCESSORS)[1]
    launches = Launches()
    launches.put({one: lambda *args, stream: None}, 0, {})
    assert launches.find(replace(one)) is not None
    assert launches.find(replace(one, **change)) is None


def test_triton_would_make_the_same_choice_of_every_argument() -> None:
    """Counts, strides and addresses of many sizes: Triton's own specialisation is the one that is sealed."""
    pytest.importorskip("triton", reason="CPU builds of torch have no Triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    from graphkiln.core.compile.attention import signature
    from graphkiln.core.ops import triton_kernels

    nvidia = make_backend(GPUTarget("cuda", 90, 32))
    wanted = reachable([(layer, LayerDtypes.all_of(BF16)) for layer in LAYERS], BF16, BLOCK, MOST, PROCESSORS)
    for one in wanted:
        kernel: Any = getattr(triton_kernels, one.kernel)
        types, constants, aligned = signature(kernel.arg_names, one)
        binder = create_function_from_signature(kernel.signature, kernel.params, nvidia)
        for count in (0, 1, 16, 17, 4096, 2**31 - 1):
            args = [
                torch.zeros(16, dtype=getattr(torch, one.pointers[place])) if place < len(one.pointers)
                else 1.0 if types[name] == "fp32" else count
                for place, name in enumerate(kernel.arg_names) if types[name] != "constexpr"
            ]  # fmt: skip
            named = {**dict(one.constants), "num_warps": one.warps, "num_stages": one.stages}
            named |= {"debug": False, "instrumentation_mode": ""}
            bound, chosen, _ = binder(*args, **named)
            _, *found, attributes = kernel._pack_args(nvidia, named, bound, chosen, None)
            # Triton 3.7 also lists arguments of which nothing is known.
            known = {place: names for place, names in attributes.items() if names}
            assert (*found, known) == (types, constants, aligned)


def test_the_backend_of_a_model_that_has_code_is_the_one_that_launches_it() -> None:
    launches = Launches()
    chosen = next(one for one in attention_backends(launches) if isinstance(one, PagedTriton))
    # What is put there later is launched too: a runner is made before its entry is opened.
    one = reachable([(LAYER, LayerDtypes.all_of(BF16))], BF16, BLOCK, 1, PROCESSORS)[0]
    launches.put({one: lambda *args, stream: None}, 0, {})
    assert chosen._launches is launches
    assert chosen._launches
