from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.paged import PagedTriton
from graphkiln.core.ops.specialisations import cut

LAYER = AttentionLayer("layer", heads=4, kv_heads=2, head_size=16, value_size=16, scale=0.3)


def test_the_kernels_compute_dense_attention() -> None:
    # The interpreter has to be chosen before Triton is imported: its own library is made of kernels too.
    triton = pytest.importorskip("triton", reason="CPU builds of torch have no Triton")
    if _release(triton.__version__) < (3, 7) and _release(version("numpy")) >= (2, 4):
        pytest.skip("the interpreter of Triton 3.6 fails with numpy 2.4 and newer")
    cases = Path(__file__).with_name("paged_cases.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    # Triton 3.6 does what numpy 2.3 calls deprecated.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning"]
    command = [sys.executable, "-m", "pytest", *options, str(cases)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:]


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


@pytest.mark.parametrize(("requests", "splits"), [(1, 32), (5, 16), (40, 2), (80, 1)])
def test_keys_are_split_among_programs_where_requests_are_few(requests: int, splits: int) -> None:
    shape = cut(LAYER, 4, 1, requests, 132)
    assert (shape.splits, shape.blocks(requests, requests), shape.one_block) == (splits, requests, True)


@pytest.mark.parametrize(
    ("size", "heads", "dtype", "device", "reason"),
    [
        (16, 4, torch.float32, "cpu", "it runs on CUDA devices, not on cpu"),
        (16, 4, torch.float64, "cuda", "not float64"),
        (320, 4, torch.float16, "cuda", "it has heads of up to 256, layer has 320"),
        (16, 256, torch.float16, "cuda", "in layer 128 do"),
        (16, 4, torch.bfloat16, "cuda", None),
    ],
)
def test_what_it_cannot_compute_is_refused_with_a_reason(
    size: int, heads: int, dtype: torch.dtype, device: str, reason: str | None
) -> None:
    pytest.importorskip("triton", reason="CPU builds of torch have no Triton")
    layer = AttentionLayer("layer", heads, 2, size, size, 0.3)
    refusal = PagedTriton().refusal(layer, dtype, torch.device(device))
    assert refusal is None if reason is None else reason in str(refusal)
