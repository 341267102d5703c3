"""What a device would settle by itself, in a real entry for one that is not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphkiln.core.deployment import Deployment
from graphkiln.core.start import precompile
from graphkiln.core.target.cubin import registers
from tests.target.crossing import can_cross, described_file

MODEL = """
import torch
from torch import nn
from graphkiln.core import support_torch_compile

@support_torch_compile
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(64))
        self.v = nn.Parameter(torch.ones(64, 4096))

    def example_inputs(self, count):
        return (torch.ones(count, 64, device=self.w.device),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:, :, None] * self.v
        a = (y.sin() * y.exp() + y.tanh()).sum(-1)
        b = (y.cos() / (y * y + 1.0)).amax(-1)
        c = torch.full((64,), 1.3, device=x.device).sin() + torch.full((64,), 0.1, device=x.device) * 3.0
        return a * self.w + b + c + torch.arange(64, device=x.device) * 0
"""


@can_cross
def test_constants_and_register_counts_are_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "decided_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    deployment = Deployment(
        "decided_model:Model", target=described_file("h200", tmp_path), max_num_batched_tokens=64
    )
    made = precompile(deployment, cache_root=tmp_path / "root")
    assert made.entry_path is not None
    (artifact,) = made.entry_path.glob("artifacts/*")
    (kernel,) = json.loads((artifact / "piece.json").read_bytes())["triton"].values()
    counts = {}
    for variant in kernel["variants"]:
        assert variant["registers"] == registers((artifact / variant["cubin"]).read_bytes())
        counts[variant["config"]["R0_BLOCK"]] = variant["registers"]
    # 65536 registers for 2048 threads: what takes more than 32 is compiled with half the block as well.
    assert counts[2048] > 32
    assert set(counts) >= {2048, 1024}
    (source,) = artifact.glob("kernels/*.py")
    text = source.read_text()
    assert "tl_math.sin(" in text or "libdevice.sin(" in text
    assert "0.30000001192092896" in text
