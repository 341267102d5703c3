"""Fingerprints: equal for equal work, whatever the layer, the symbol or the process; different otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphkiln.core import support_torch_compile
from graphkiln.core.compile.build import split_capture
from graphkiln.core.config.splitting import ATTENTION_OPS, KV_CACHE_UPDATE_OPS
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.load import build
from graphkiln.core.models.source import identify
from graphkiln.core.part import Part
from graphkiln.core.tracing import trace_part
from tests.models.folders import causal_lm
from tests.trace.traced import plan, trace


def fingerprints(capture: Any, *splitting: str) -> list[str]:
    return [piece.fingerprint for piece in split_capture(capture, splitting)[1]]


@support_torch_compile
class Layers(nn.Module):
    def __init__(self, count: int, factor: float = 2.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, dtype=dtype) for _ in range(count))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x)) * self.factor
            x = torch.ops.aten.relu.default(x)
        return x


def toy(count: int, *, tokens: int = 5, **given: Any) -> list[str]:
    x = torch.ones(tokens, 4, dtype=given.get("dtype", torch.float32))
    return fingerprints(trace(Layers(count, **given), x).capture, "aten::relu")


def test_equal_layers_are_one_piece_whatever_their_number() -> None:
    assert len(toy(3)) == 1
    assert toy(3) == toy(5) == toy(3, tokens=9)


@pytest.mark.parametrize("other", [{"factor": 3.0}, {"dtype": torch.float64}], ids=["constant", "dtype"])
def test_other_work_is_another_piece(other: dict[str, Any]) -> None:
    assert not set(toy(2, **other)) & set(toy(2))


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = "from tests.compile.test_pieces import toy; print(*toy(2))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == toy(2)


def llama(folder: str) -> tuple[int, list[str]]:
    deployment = Deployment(folder)
    served = build(identify(deployment), deployment, weights="none")
    traced = trace_part(Part("backbone", served.backbone, served.example_inputs), plan())
    split, pieces, _ = split_capture(traced.capture, (*ATTENTION_OPS, *KV_CACHE_UPDATE_OPS))
    return len(split.pieces), [piece.fingerprint for piece in pieces]


@pytest.mark.slow
def test_a_llama_has_three_pieces_and_they_are_those_of_one_with_more_layers(
    tmp_path: Path,
) -> None:
    for count in (2, 4):
        causal_lm("llama", num_hidden_layers=count).save_pretrained(tmp_path / str(count))
    two, four = llama(str(tmp_path / "2")), llama(str(tmp_path / "4"))
    assert (two[0], four[0]) == (3, 5)
    assert len(two[1]) == 3
    assert two[1] == four[1]
