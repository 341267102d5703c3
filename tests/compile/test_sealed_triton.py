"""Sealed Triton kernels: the launch that is written out, the choice between configurations, the wrapper."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphkiln.core.compile.inductor import BuiltPiece
from graphkiln.core.compile.seal import build_identity, seal
from graphkiln.core.compile.sealed import SealedPiece, load_piece
from graphkiln.core.compile.sealed_triton import launch_of
from graphkiln.core.compile.triton_kernels import BuiltTriton, Variant
from graphkiln.core.loading import FreshArtifact
from tests.target.elf import cubin

SOURCE = "@triton_heuristics.pointwise(inductor_meta={'kernel_name': 'twice'})\ndef twice(): ...\n"
WRAPPER = f"""
import torch
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
from torch import device
async_compile = AsyncCompile()
twice = async_compile.triton('twice', {SOURCE!r}, device_str='cuda')
async_compile.wait(globals())
del async_compile

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, = args
        args.clear()
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            where = device(type='cuda', index=0)
            stream0 = get_raw_stream(0)
            twice.run(arg0_1, 7, stream=stream0)
        return (arg0_1,)

runner = Runner(partitions=[])
call = runner.call
"""


def variant(path: Path, block: int) -> Variant:
    return Variant(
        config={"XBLOCK": block, "num_warps": 4, "num_stages": 1},
        cubin=path,
        warps=4,
        shared=0,
        registers=16,
        arguments=("in_ptr0", "xnumel"),
        types="Oi",
        nulls=2,
        prefix=("half = xnumel // 2",),
        grid=(f"-(xnumel // -{block})", "half", "1"),
    )


@pytest.fixture
def piece(tmp_path: Path) -> BuiltPiece:
    file = tmp_path / "twice.cubin"
    file.write_bytes(cubin("twice", 16))
    kernel = BuiltTriton(
        "twice", SOURCE, ("in_ptr0", "xnumel"), (), (), (variant(file, 64), variant(file, 128))
    )
    return BuiltPiece(WRAPPER, [], {}, 1, (), None, triton={SOURCE: kernel}, aligned=(0,))


def test_a_launch_passes_what_the_machine_code_takes_and_computes_its_grid() -> None:
    calls: list[Any] = []
    described = {
        "arguments": ["in_ptr0", "xnumel"], "types": "Oi", "nulls": 2, "prefix": ["half = xnumel // 2"],
        "grid": ["-(xnumel // -64)", "half", "1"], "warps": 4, "shared": 48,
    }  # fmt: skip
    parameters = ["in_ptr0", "unused", "xnumel"]
    launch_of(described, parameters, lambda *args: calls.append(args), 5)("p", "u", 130, stream=9)
    assert calls == [(5, 3, 65, 1, 4, 48, "OiOO", ("p", 130, None, None), 9)]


def test_a_sealed_kernel_is_plain_files_and_names_no_device(piece: BuiltPiece) -> None:
    files = seal(piece, "f" * 64)
    table = json.loads(bytes(files["piece.json"]))
    ((name, kernel),) = table["triton"].items()
    assert sorted(files) == [
        f"kernels/{name}.0.cubin", f"kernels/{name}.1.cubin", f"kernels/{name}.py", "piece.json", "wrapper.py"
    ]  # fmt: skip
    assert [row["config"]["XBLOCK"] for row in kernel["variants"]] == [64, 128]
    wrapper = bytes(files["wrapper.py"]).decode()
    assert f"twice = sealed_triton('{name}')" in wrapper
    assert wrapper.count("sealed_device") == 4
    assert "async_compile" not in wrapper


def test_builds_that_differ_in_machine_code_only_are_one_build(piece: BuiltPiece, tmp_path: Path) -> None:
    first = build_identity(seal(piece, "f" * 64))
    (tmp_path / "twice.cubin").write_bytes(cubin("twice", 16) + b"\0")
    assert build_identity(seal(piece, "f" * 64)) == first


def test_a_piece_runs_on_the_device_that_it_is_loaded_for(
    piece: BuiltPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[Any] = []
    devices: list[Any] = []

    def load_kernel(path: str, name: str, shared: int, device: int) -> tuple[int, int, int]:
        devices.append(device)
        return 11, 16, 0

    launcher = SimpleNamespace(_load_kernel=load_kernel, _launch_kernel=lambda *args: launched.append(args))
    monkeypatch.setattr(torch._C, "_StaticCudaLauncher", launcher, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + index, raising=False)

    @contextlib.contextmanager
    def guard(index: int) -> Iterator[None]:
        devices.append(index)
        yield

    monkeypatch.setattr(torch.cuda, "_DeviceGuard", guard)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    loaded = load_piece(FreshArtifact(seal(piece, "f" * 64)), device=3)
    loaded([torch.ones(7)])

    assert set(devices) == {3}
    ((function, x, y, z, *_, stream),) = launched
    assert (function, x, y, z, stream) == (11, 1, 3, 1, 103)


def test_an_input_that_lies_crooked_is_copied_and_what_is_written_comes_back() -> None:
    seen: list[int] = []

    def call(inputs: list[Any]) -> list[Any]:
        (value,) = inputs
        seen.append(value.data_ptr() % 16)
        value.add_(1)
        return [value]

    crooked = torch.zeros(9)[1:]
    assert crooked.data_ptr() % 16
    SealedPiece("f", call, 1, aligned=(0,), mutated=(0,))([crooked])
    assert seen == [0]
    assert crooked.sum() == 8
