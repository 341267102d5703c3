"""Attention kernels that lie in an entry: loaded, launched, and refused where a step could ask for more."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.cache.store.manifest import ATTENTION_TABLE as TABLE
from graphkiln.core.attending import Attending, BuiltAttention
from graphkiln.core.compile import compiler_factor
from graphkiln.core.compile.sealed_attention import FORMAT, load_attention
from graphkiln.core.compile.triton_kernels import require_triton, triton_environment
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import LoadRefused, NoCompiler, PieceRefused
from graphkiln.core.loading import FreshArtifact
from graphkiln.core.mending import Mending
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.specialisations import LayerDtypes, Specialisation, reachable
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.target.cuda import CudaTarget
from graphkiln.core.target.description import find_description
from graphkiln.core.target.torch_build import ASSEMBLERS, own_ptxas
from graphkiln.core.target.tried import torch_minor
from tests.target.elf import cubin

LAYER = AttentionLayer("layer", heads=4, kv_heads=2, head_size=16, value_size=16, scale=0.25)
BF16 = torch.bfloat16
DEPLOYMENT = Deployment("m", dtype="bfloat16", target="h200", max_num_seqs=100)
DTYPES = {"layer": ["bfloat16"] * 4}
H200 = find_description("h200")
WANTED = reachable([(LAYER, LayerDtypes.all_of(BF16))], BF16, DEPLOYMENT.block_size, 100, 132)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was launched, each code by its place among those that were loaded."""
    calls: list[Any] = []
    loaded: list[str] = []

    def load_kernel(path: str, name: str, shared: int, device: int) -> tuple[int, int, int]:
        assert Path(path).read_bytes() == cubin(name, 20)
        loaded.append(name)
        return len(loaded), 20, 0

    launcher = SimpleNamespace(_load_kernel=load_kernel, _launch_kernel=lambda *args: calls.append(args))
    monkeypatch.setattr(torch._C, "_StaticCudaLauncher", launcher, raising=False)
    return calls


def files(wanted: tuple[Specialisation, ...], folder: Path, form: int = FORMAT) -> dict[str, bytes | Path]:
    rows, found = [], {}
    for number, one in enumerate(wanted):
        path = folder / f"{number}.cubin"
        path.write_bytes(cubin(one.kernel, 20))
        found[f"kernels/{number}.cubin"] = path
        launch = {"warps": one.warps, "shared": 64, "registers": 20, "nulls": 2, "types": "Oi"}
        rows.append(
            {**one.as_json(), **launch, "arguments": ["tensor", "count"], "cubin": f"kernels/{number}.cubin"}
        )
    return {TABLE: canonical_json({"format": form, "kernels": rows}), **found}


def attending(launches_of: list[ServedModel]) -> Attending:
    here, module = torch.device("cuda"), torch.nn.Module()
    served = ServedModel(module, lambda hidden: hidden, lambda count: (), (LAYER,), 8, 2048, BF16, here)
    launches_of.append(served)
    return Attending(served, DEPLOYMENT, CudaTarget(H200.device, "13.0", "h200", described=H200))


def test_each_launch_is_found_by_what_it_was_compiled_for(launched: list[Any], tmp_path: Path) -> None:
    found = load_attention(FreshArtifact(files(WANTED, tmp_path)), 3)
    assert list(found) == list(WANTED)
    for place, one in enumerate(WANTED):
        found[one](7, 2, 1, "tensor", 40, stream=9)
        assert launched[-1] == (place + 1, 7, 2, 1, one.warps, 64, "OiOO", ("tensor", 40, None, None), 9)


def test_what_an_entry_brings_is_what_the_model_launches(launched: list[Any], tmp_path: Path) -> None:
    served: list[ServedModel] = []
    attending(served).load("e", DTYPES, FreshArtifact(files(WANTED, tmp_path)))
    assert served[0].launches.missing(WANTED) == ()


def test_an_entry_that_lacks_code_for_a_step_is_refused_by_name(launched: list[Any], tmp_path: Path) -> None:
    kept = tuple(one for one in WANTED if dict(one.constants).get("ONE_BLOCK") is not False)
    with pytest.raises(LoadRefused, match=r"lacks attend_kernel for a step .*BLOCK_M 64"):
        attending([]).load("e", DTYPES, FreshArtifact(files(kept, tmp_path)))
    # Compiled for another type: never taken for this one.
    other = {"layer": ["float32", "bfloat16", "bfloat16", "float32"]}
    with pytest.raises(LoadRefused, match="lacks attend_kernel"):
        attending([]).load("e", other, FreshArtifact(files(WANTED, tmp_path)))


def test_code_that_cannot_be_loaded_is_refused_and_made_anew(
    launched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PieceRefused, match="attention format 99, this version reads"):
        attending([]).load("e", DTYPES, FreshArtifact(files(WANTED, tmp_path, form=99)))

    def refuses(*args: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(torch._C._StaticCudaLauncher, "_load_kernel", refuses)
    with pytest.raises(PieceRefused, match="cannot be loaded: no kernel image is available"):
        attending([]).load("e", DTYPES, FreshArtifact(files(WANTED, tmp_path)))


def test_builds_with_other_code_are_other_builds_and_other_bytes_alone_are_not(tmp_path: Path) -> None:
    one = BuiltAttention(files(WANTED, tmp_path), DTYPES, len(WANTED), "triton 3.6.0")
    (tmp_path / "0.cubin").write_bytes(b"other")
    assert one.build == BuiltAttention(one.files, DTYPES, len(WANTED), "triton 3.6.0").build
    fewer = BuiltAttention(files(WANTED[1:], tmp_path), DTYPES, len(WANTED) - 1, "triton 3.6.0")
    assert one.build != fewer.build


def test_an_edit_of_a_kernel_or_of_what_chooses_among_them_is_another_key() -> None:
    kernels = {"ops.paged", "ops.specialisations", "ops.triton_kernels"}
    assert kernels <= set(compiler_factor.pipeline_digest("cuda"))
    # Code for a CPU is none of their business.
    assert not kernels & set(compiler_factor.pipeline_digest("cpu"))


# Of the variables that Triton keys its kernels by: those that only print, and those of other devices.
_PRINTS = frozenset(
    {
        "LLVM_ENABLE_TIMING", "LLVM_IR_ENABLE_DUMP", "MLIR_DISABLE_MULTITHREADING", "MLIR_DUMP_PATH",
        "MLIR_ENABLE_DIAGNOSTICS", "MLIR_ENABLE_DUMP", "MLIR_ENABLE_TIMING", "NVPTX_ENABLE_DUMP",
    }
)  # fmt: skip


@pytest.mark.parametrize("name", ["TRITON_DEFAULT_FP_FUSION", "DISABLE_LLVM_OPT", "PTXAS_OPTIONS"])
def test_a_variable_that_changes_machine_code_changes_the_key(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="CPU builds of torch have no Triton")
    before = compiler_factor.compiler_values("cuda", Pipeline())["triton"]
    monkeypatch.setenv(name, "1")
    assert compiler_factor.compiler_values("cuda", Pipeline())["triton"] != before


@pytest.mark.parametrize("name", ["TRITON_PTXAS_BLACKWELL_PATH", "TRITON_CUDART_PATH", "TRITON_ENABLE_NVTX"])
def test_a_variable_that_changes_no_machine_code_is_in_no_key(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiler_factor.compiler_values("cuda", Pipeline())["triton"]
    monkeypatch.setenv(name, "1")
    assert compiler_factor.compiler_values("cuda", Pipeline())["triton"] == before


@pytest.mark.parametrize("set_to", [None, "/elsewhere/ptxas"])
def test_both_assemblers_are_triton_s_own_while_kernels_are_compiled(
    set_to: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ASSEMBLERS.values():
        monkeypatch.delenv(name, raising=False)
        if set_to is not None:
            monkeypatch.setenv(name, set_to)
    with triton_environment(tmp_path):
        inside = {program: os.environ[name] for program, name in ASSEMBLERS.items()}
    assert inside == {program: str(own_ptxas(program)) for program in ASSEMBLERS}
    assert [os.environ.get(name) for name in ASSEMBLERS.values()] == [set_to, set_to]


def test_a_triton_that_interprets_kernels_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="CPU builds of torch have no Triton")
    monkeypatch.setattr("graphkiln.core.compile.triton_kernels.TRIED", {torch_minor(): ""})
    require_triton()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(NoCompiler, match="TRITON_INTERPRET is set"):
        require_triton()


def test_every_variable_that_triton_keys_kernels_by_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="CPU builds of torch have no Triton")
    from triton._C import libtriton

    # It tells only those that are set, so that every name in its library that looks like one is set.
    library = Path(str(libtriton.__file__)).read_bytes()
    for name in set(re.findall(rb"[A-Z][A-Z0-9]+_[A-Z0-9_]{4,60}", library)):
        monkeypatch.setenv(name.decode(), "1")
    keyed = [name for name in libtriton.get_cache_invalidating_env_vars() if not name.startswith("AMDGCN_")]
    assert len(keyed) > 10
    known = {*compiler_factor._TRITON_OTHERS, *_PRINTS}
    assert [name for name in keyed if not name.startswith("TRITON_") and name not in known] == []


@pytest.mark.parametrize("broken", [frozenset[str](), frozenset({"kernels"}), frozenset({"a piece"})])
def test_of_a_damaged_entry_sound_attention_is_kept(broken: frozenset[str]) -> None:
    stored = SimpleNamespace(
        wiring=lambda prefix: {"attention": {"artifact": "kernels"}, "pieces": []},
        artifacts=lambda: {"kernels": {TABLE: None}},
        fetch=lambda artifact, name: b"{}",
    )
    found = Mending(cast(Any, stored), "k", broken).attention("backbone")
    assert found == (None if "kernels" in broken else {TABLE: b"{}"})
