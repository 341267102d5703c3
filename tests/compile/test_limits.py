"""Limits that Inductor would put on the token count: the piece is compiled without a hint, and is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphkiln.core import support_torch_compile, use_config
from graphkiln.core.deployment import Deployment


@support_torch_compile
class Sums(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.sum()


@support_torch_compile
class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dynamic"), [(Sums, "unbacked"), (Plain, "backed")])
def test_a_limit_of_inductor_is_compiled_away(kind: Any, dynamic: str, tmp_path: Path) -> None:
    with use_config(deployment=Deployment("toy", max_num_batched_tokens=4096), cache_root=tmp_path):
        module = kind()
    for count in (5, 1, 2, 2048, 4096):
        x = torch.linspace(-1, 1, count * 4).reshape(count, 4)
        with torch.no_grad():
            torch.testing.assert_close(module(x), module.forward(x), rtol=1e-4, atol=1e-3)
    (wiring,) = tmp_path.glob("torch_compile_cache/*/rank_0_0/backbone/wiring.json")
    (piece,) = json.loads(wiring.read_text())["pieces"]
    assert piece["dynamic"] == dynamic
    assert piece["range"] == [1, 4096]
