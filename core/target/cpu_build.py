"""What the CPU build of torch lacks to stand for the CUDA build that a described device has.

Both builds of one version have the same Python sources but for `version.py`; this is held by the digest
that the description records, and not taken for granted. What then differs is replaced, for good:

- the version, which says the build: it is the described one's;
- the device guard: torch's operators ask for one of the device of their arguments, fakes too, and the
  CPU build has none for CUDA. One that torch lets Python define stands in: there is one device, it is
  the current one, and nothing is to be done to switch to it.

Private symbols: `torch._C._acc.DeviceGuard` and its registration, which is for the device type PrivateUse1,
and `c10::impl::device_guard_impl_registry`, exported by libc10, a pointer for each device type.
Tried on torch 2.13.0, by keys and artifacts against its CUDA build; nothing of it was run on a device.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion

from graphkiln.core.errors import NoDevice
from graphkiln.core.target.description import Description

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
# `c10::DeviceType`: places in the registry.
_CUDA, _PRIVATE = 1, 20


class _Guard(torch._C._acc.DeviceGuard):
    """Guards the described device: cuda:0, and no other."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.CUDA


# Torch keeps a plain pointer to it.
_guard = _Guard()


def stand_in(description: Description) -> None:
    """Makes the CPU build of torch answer as the described CUDA build. Raises NoDevice if it cannot."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        registry = (ctypes.c_void_p * (_PRIVATE + 1)).in_dll(library, _REGISTRY)
    except ValueError as error:
        raise _unknown(description, "has no registry of device guards") from error
    if registry[_CUDA] is not None or registry[_PRIVATE] is not None:
        raise _unknown(description, "has other device guards than those that were tried")
    torch._C._acc.register_python_privateuseone_device_guard(_guard)
    registry[_CUDA], registry[_PRIVATE] = registry[_PRIVATE], None
    torch.__version__ = TorchVersion(description.versions.torch)
    torch.version.__version__ = description.versions.torch
    torch.version.cuda = description.versions.cuda


def _unknown(description: Description, what: str) -> NoDevice:
    return NoDevice(
        f"target {description.title}",
        f"this CPU build of torch {what}",
        f"install the CUDA build of torch {description.versions.torch}; it needs no GPU",
    )
