"""The state around a call that traced code depends on: fixed while compiling, checked later."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device

from graphkiln.core.errors import Bypass

# Thread counts change no code; gradient and autocast state is the door's business.
_NOT_STORED = ("num_threads", "grad_mode", "autocast_state")


def ambient_state() -> dict[str, Any]:
    """Returns torch's global state as data, numbers of enums as this torch version numbers them."""
    state: dict[str, Any] = json.loads(str(torch._C._dynamo.guards.GlobalStateGuard().__getstate__()))
    return {name: value for name, value in sorted(state.items()) if name not in _NOT_STORED}


def refuse_modes() -> None:
    """Raises Bypass when a mode is active that would change what a traced call means."""
    if _device.CURRENT_DEVICE is not None:
        raise Bypass("code", f"torch.set_default_device({_device.CURRENT_DEVICE}) is in force")
    if _get_current_function_mode_stack():
        raise Bypass("code", "a torch function mode is active")


@contextlib.contextmanager
def serving_state() -> Iterator[None]:
    """No gradients and no autocast: the one state that code is compiled for and served under."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield
