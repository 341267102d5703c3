"""The versions that kernels for GPUs were compiled with: another is refused until somebody has tried it."""

from __future__ import annotations

import torch

# The Triton that goes with each torch, where what was compiled ran on a device.
TRIED = {"2.11": "3.6"}
# Where entries were made for a described device: key, artifacts and the load that stands for the device's.
DESCRIBED = {**TRIED, "2.12": "3.7", "2.13": "3.7", "2.14": "3.8", "2.15": "3.9"}
# Where the CPU build gave the keys and the artifacts that the CUDA build of the same version gives.
LIGHT = ("2.13",)


def torch_version() -> str:
    """Returns torch's version without its build: `2.11.0` of `2.11.0+cu130`."""
    return str(torch.__version__).partition("+")[0]


def torch_minor() -> str:
    """Returns the part of torch's version that the tables go by: `2.11`."""
    return ".".join(torch_version().split(".")[:2])
