"""Kernels for a CPU target are of that target's instructions, whatever this machine has."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from graphkiln.core.deployment import Deployment
from graphkiln.core.start import precompile

MODEL = """
import torch
from torch import nn
from graphkiln.core import support_torch_compile

@support_torch_compile
class Model(nn.Module):
    def example_inputs(self, count):
        return (torch.ones(count, 64),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2
"""
# The registers of a set, and those of a richer one, as the assembler writes them.
SETS = [("cpu:avx2", "%ymm", "%zmm"), ("cpu:avx512", "%zmm", "no richer one")]


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("objdump") is None, reason="needs x86-64 and objdump"
)
@pytest.mark.parametrize(("target", "used", "richer"), SETS)
def test_a_kernel_uses_the_registers_of_its_set_and_of_no_richer_one(
    target: str, used: str, richer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "isa_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = precompile(
        Deployment("isa_model:Model", target=target, max_num_batched_tokens=64),
        check=False,
        cache_root=tmp_path / "root",
    )
    assert made.entry_path is not None
    (library,) = made.entry_path.glob("artifacts/*/kernels/*.so")
    shown = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True)
    assert used in shown.stdout
    assert richer not in shown.stdout
