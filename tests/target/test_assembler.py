"""The assemblers that come with Triton: which is wanted, what it takes, and where there must be none."""

from __future__ import annotations

import os
import unittest.mock
from dataclasses import replace
from pathlib import Path

import pytest

from graphkiln.core.compile.triton_kernels import triton_environment
from graphkiln.core.errors import NoCompiler, NoDevice
from graphkiln.core.target.described import refuse_assembling
from graphkiln.core.target.description import built_in, find_description
from graphkiln.core.target.required import require_assembler
from graphkiln.core.target.torch_build import assembled_for, own_ptxas

H200 = find_description("h200")


def test_another_assembler_is_refused_where_the_description_tells_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("graphkiln.core.target.required.ptxas_text", lambda: H200.versions.ptxas)
    known = frozenset({"sm_90a"})
    monkeypatch.setattr("graphkiln.core.target.required.assembled_for", lambda capability: ("sm_90a", known))
    require_assembler(H200)
    monkeypatch.setattr("graphkiln.core.target.required.ptxas_text", lambda: None)
    require_assembler(replace(H200, versions=replace(H200.versions, ptxas=None)))
    with pytest.raises(NoDevice, match=r"the assembler Cuda .* 12\.8.*, and this is none that answers"):
        require_assembler(H200)


@pytest.mark.skipif(own_ptxas() is None, reason="is about the assemblers that come with Triton")
def test_a_capability_that_no_assembler_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for title in built_in():
        device = find_description(title).device
        name, known = assembled_for(device.major * 10 + device.minor)
        assert name in known
    free = replace(H200, versions=replace(H200.versions, ptxas=None))
    for major, minor, name in ((9, 7, "sm_97a"), (3, 5, "sm_35"), (99, 0, "sm_990a")):
        other = replace(free, device=replace(free.device, major=major, minor=minor))
        said = rf"its compute capability {major}\.{minor} \({name}\) is none that Triton's assembler knows"
        with pytest.raises(NoDevice, match=said):
            require_assembler(other)
    monkeypatch.setattr("graphkiln.core.target.torch_build.own_ptxas", lambda name: Path("/proc/none"))
    with pytest.raises(NoDevice, match="no assembler answers"):
        require_assembler(free)


def test_a_process_that_only_loads_has_no_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs", reason="CPU builds of torch have no Triton")
    from triton.backends.nvidia.compiler import get_ptxas

    # A variable that names no program leaves Triton its own.
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/proc/no/program")
    assert get_ptxas(90).path
    with unittest.mock.patch.multiple(knobs.nvidia_knobs, ptxas=None, ptxas_blackwell=None):
        refuse_assembling()
        for capability in (90, 100):
            with pytest.raises(NoCompiler, match="this process only loads"):
                get_ptxas(capability)


@pytest.mark.skipif(own_ptxas() is None, reason="is about Triton's compile")
def test_nothing_that_was_compiled_elsewhere_comes_into_a_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("TRITON_CACHE_MANAGER", "TRITON_REMOTE_CACHE_BACKEND", "TRITON_KERNEL_OVERRIDE")
    for name in names:
        monkeypatch.setenv(name, "1")
    with triton_environment(tmp_path):
        assert not {*names} & {*os.environ}
    assert {os.environ[name] for name in names} == {"1"}
