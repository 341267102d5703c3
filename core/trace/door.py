"""The door of a compiled part: what every call is held to before any compiled code runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphkiln.core.errors import Bypass, DoorError
from graphkiln.core.trace.arguments import IntermediateTensors
from graphkiln.core.trace.observe import typed_constant


class Door:
    """Checks one part's calls: number and kind of arguments, dtype, device, sizes, token count, grad mode."""

    def __init__(self, promised: Mapping[str, Any], forward: Callable[..., Any]) -> None:
        self._rows: Sequence[Mapping[str, Any]] = promised["arguments"]
        self.smallest, self.largest = int(promised["smallest"]), int(promised["largest"])
        self._signature = inspect.signature(forward)

    def ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns a call's arguments in the order of the traced forward, defaults filled in."""
        if not kwargs and len(args) == len(self._rows):
            return list(args)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return list(bound.arguments.values())

    def check(self, values: Sequence[Any]) -> int:
        """Returns the token count of a call. Raises DoorError when it brings something else than promised."""
        if torch.is_grad_enabled():
            raise DoorError("grad mode", "no gradients", "gradients on: call it under torch.no_grad()")
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise DoorError("autocast", "autocast off", "autocast on")
        if len(values) != len(self._rows):
            raise DoorError("arguments", f"{len(self._rows)} of them", f"{len(values)}")
        tokens: int | None = None
        for row, value in zip(self._rows, values, strict=True):
            tokens = _check(row, value, tokens)
        if tokens is None:
            return 0
        if not self.smallest <= tokens <= self.largest:
            raise DoorError("token count", f"{self.smallest} to {self.largest}", str(tokens))
        return tokens


def _check(row: Mapping[str, Any], value: Any, tokens: int | None) -> int | None:
    """Returns the token count known after one argument. Raises DoorError where it is not as promised."""
    if "dtype" in row:
        return _check_tensor(row, value, tokens)
    if "members" in row:
        return _check_members(row, value, tokens)
    if not _is_constant(value, row["constant"]):
        came = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else f"{value!r}"
        raise DoorError(row["name"], f"the constant {row['constant'][-1]!r}", came)
    return tokens


def _is_constant(value: Any, promised: Any) -> bool:
    try:
        return bool(typed_constant(value) == promised)
    except Bypass:
        return False


def _check_members(row: Mapping[str, Any], value: Any, tokens: int | None) -> int | None:
    names = [member["name"] for member in row["members"]]
    if not isinstance(value, IntermediateTensors):
        raise DoorError(row["name"], "IntermediateTensors", f"a {type(value).__name__}")
    if list(value.tensors) != names:
        raise DoorError(row["name"], f"members {', '.join(names)}", ", ".join(value.tensors))
    for member in row["members"]:
        named = {**member, "name": f"{row['name']}[{member['name']!r}]"}
        tokens = _check_tensor(named, value[member["name"]], tokens)
    return tokens


def _check_tensor(row: Mapping[str, Any], value: Any, tokens: int | None) -> int | None:
    name, shape = row["name"], row["shape"]
    if not isinstance(value, torch.Tensor):
        raise DoorError(name, f"a tensor of {row['dtype']}", f"a {type(value).__name__}")
    if str(value.dtype) != row["dtype"]:
        raise DoorError(name, row["dtype"], str(value.dtype))
    if value.device.type != row["device"]:
        raise DoorError(name, f"a tensor on {row['device']}", f"one on {value.device.type}")
    if value.dim() != len(shape):
        raise DoorError(name, f"{len(shape)} dimensions", str(value.dim()))
    if not value.is_contiguous():
        raise DoorError(name, "a contiguous tensor", f"strides {tuple(value.stride())}")
    for dim, (size, promised) in enumerate(zip(value.shape, shape, strict=True)):
        if promised is None:
            if tokens is not None and size != tokens:
                raise DoorError(name, f"{tokens} tokens, as in the other arguments", str(size))
            tokens = size
        elif size != promised:
            raise DoorError(name, f"size {promised} in dimension {dim}", str(size))
    return tokens
