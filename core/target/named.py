"""From the name of a target to the target: a CPU, the GPU here, or one that a description stands for."""

from __future__ import annotations

import torch

from graphkiln.core.target.cpu import CpuTarget, cpu_target
from graphkiln.core.target.cuda import CudaTarget, live_target
from graphkiln.core.target.description import find_description

Target = CpuTarget | CudaTarget


def find_target(name: str | None) -> Target:
    """Returns the target called `name`; without a name the CUDA device here, or else the CPU here.

    A description of the device here is that device. Raises BadTarget for a name that is none and a file
    that is no description, NoDevice for `cuda` where there is none.
    """
    if name is None:
        return live_target() if torch.cuda.is_available() else cpu_target()
    if name == "cpu" or name.startswith("cpu:"):
        return cpu_target(name)
    if name == "cuda":
        return live_target()
    found = find_description(name)
    described = CudaTarget(found.device, found.versions.cuda, found.title, described=found)
    if torch.cuda.is_available():
        live = live_target(found.title)
        if live.as_factor() == described.as_factor():
            return live
    return described
