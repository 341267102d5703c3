"""Models with Triton kernels of their own: launched as they are, tuned, and inside an op.

Each has `reference`, the same in plain PyTorch: where nothing can be compiled, their own forward cannot run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn

WIDTH = 64
HALF = tl.constexpr(0.5)


@triton.jit
def _halved(x):
    return x * HALF


@triton.jit
def scale_kernel(given, made, count, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(given + at, mask=at < count)
    tl.store(made + at, _halved(x) * factor, mask=at < count)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 1024}, num_warps=8)], key=["count"]
)
@triton.jit
def shift_kernel(given, made, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(given + at, mask=at < count)
    tl.store(made + at, x + 1, mask=at < count)


@torch.library.triton_op("graphkiln_round_trip::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    made, count = torch.empty_like(x), x.numel()
    torch.library.wrap_triton(scale_kernel)[(triton.cdiv(count, 256),)](x, made, count, 3.0, BLOCK=256)
    return made


class Kernels(nn.Module):
    """Tokens [T] to hidden states [T, WIDTH], by all three ways to launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens) @ self.weight
        made, count = torch.empty_like(hidden), hidden.numel()
        scale_kernel[(triton.cdiv(count, 128),)](hidden, made, count, 2.0, BLOCK=128)
        shifted = torch.empty_like(made)
        shift_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](made.relu(), shifted, count)
        return scaled(shifted) + hidden

    def reference(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns what `forward` does, without Triton."""
        hidden = self.embed(tokens) @ self.weight
        return ((hidden * 0.5 * 2.0).relu() + 1) * 0.5 * 3.0 + hidden


def kernels() -> Kernels:
    """Returns the model."""
    return Kernels()
