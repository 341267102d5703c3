"""What must be installed to compile for a described device, and by which of two routes that happens.

The CUDA build of the device's torch needs no GPU and is the route that was proved on a device. The CPU
build, a twentieth of its size, is the light route: it stands for the CUDA build of the same version.
"""

from __future__ import annotations

import sys
from importlib import metadata

import torch

from graphkiln.core.errors import NoDevice
from graphkiln.core.target.description import Description
from graphkiln.core.target.torch_build import assembled_for, ptxas_text, torch_sources
from graphkiln.core.target.tried import DESCRIBED, LIGHT, TRIED, torch_minor, torch_version


def require_tried(description: Description) -> None:
    """Raises NoDevice for versions that are not the description's, or that nobody has tried."""
    where = f"target {description.title}"
    light = not torch.backends.cuda.is_built()
    here, minor, wanted = str(torch.__version__), torch_minor(), description.versions.torch
    if light:
        here, wanted = torch_version(), wanted.partition("+")[0]
    if minor not in DESCRIBED:
        raise NoDevice(
            where,
            f"compiling for a device that is not here was tried with torch {', '.join(DESCRIBED)} only, "
            f"and this is torch {torch_version()}",
            f"install torch {wanted}",
        )
    if here != wanted:
        # Its CPU build would be the next to be refused.
        build = "the CUDA build of torch" if light and not wanted.startswith(LIGHT) else "torch"
        raise NoDevice(
            where,
            f"it was seen with torch {wanted}, and this is torch {here}",
            f"install {build} {wanted}, or describe the device with the torch that it has: "
            "graphkiln target describe",
        )
    if light:
        _require_light(where, description)
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError as error:
        wanted = description.versions.triton or DESCRIBED[minor]
        raise NoDevice(where, "Triton is not installed", f"install triton=={wanted}") from error
    if description.versions.triton is not None and triton != description.versions.triton:
        raise NoDevice(
            where,
            f"it was seen with Triton {description.versions.triton}, and this is Triton {triton}",
            f"install triton=={description.versions.triton}",
        )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != description.versions.python:
        raise NoDevice(
            where,
            f"it was seen with Python {description.versions.python}, and this is Python {python}",
            f"run graphkiln with Python {description.versions.python}",
        )


def require_sources(description: Description) -> None:
    """Raises NoDevice where torch's files are not those that the device was seen with, if that is known."""
    wanted = description.versions.torch_sources
    if wanted is not None and torch_sources() != wanted:
        raise NoDevice(
            f"target {description.title}",
            f"the Python files of torch here are not those of torch {description.versions.torch} that it "
            "was seen with",
            "reinstall torch, or describe the device anew",
        )


def require_assembler(description: Description) -> None:
    """Raises NoDevice where Triton's assembler is not that of the device, or makes no code for such a one.

    Asks the assembler, which is a process: for who is about to compile, and not for who loads.
    """
    wanted, device = description.versions.ptxas, description.device
    here = None if wanted is None else ptxas_text()
    where, again = f"target {description.title}", "reinstall triton, or describe the device anew"
    if here != wanted:
        raise NoDevice(
            where,
            f"it was seen with the assembler {wanted}, and this is {here or 'none that answers'}",
            again,
        )
    name, known = assembled_for(device.major * 10 + device.minor)
    if name not in known:
        capability = f"its compute capability {device.major}.{device.minor} ({name})"
        why = f"{capability} is none that Triton's assembler knows" if known else "no assembler answers"
        raise NoDevice(where, why, again)


def route(description: Description) -> str:
    """Returns a line that says by which route a process compiles for a described device."""
    wanted = description.versions.torch
    light = f"the light route: the CPU build of torch stands for {wanted}"
    line = light if not torch.backends.cuda.is_built() else f"the CUDA build of torch, {wanted}"
    never = "" if torch_minor() in TRIED else f"; what torch {torch_minor()} compiles has not run on a device"
    return f"{description.title} is not here, compiled for by {line}{never}"


def _require_light(where: str, description: Description) -> None:
    wanted = description.versions
    instead = f"install the CUDA build of torch {wanted.torch}; it needs no GPU"
    if torch_minor() not in LIGHT:
        raise NoDevice(
            where,
            f"this is the CPU build of torch {torch_version()}, and compiling with the CPU build was tried "
            f"with torch {', '.join(LIGHT)} only",
            instead,
        )
    if wanted.torch_sources is None:
        raise NoDevice(
            where,
            "this is the CPU build of torch, and the description does not record the files of the device's",
            f"{instead}, or describe the device anew",
        )
