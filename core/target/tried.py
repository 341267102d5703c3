"""The versions that kernels for GPUs were compiled with: another is refused until somebody has tried it."""

from __future__ import annotations

import torch

# The Triton that goes with each torch.
TRIED = {"2.11": "3.6"}


def torch_version() -> str:
    """Returns torch's version without its build: `2.11.0` of `2.11.0+cu130`."""
    return str(torch.__version__).partition("+")[0]


def torch_minor() -> str:
    """Returns the part of torch's version that `TRIED` goes by: `2.11`."""
    return ".".join(torch_version().split(".")[:2])
