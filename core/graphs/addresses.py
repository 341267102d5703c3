"""What a graph was captured with: replayed with anything else, it reads memory that is no longer meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Address:
    """Where one tensor lies and how its memory is read."""

    pointer: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def seen(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a capture took for granted of `values`: a tensor's address, the value of anything else."""
    return {name: _seen(value) for name, value in values.items()}


def difference(captured: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Returns the name, what was captured and what came, of the first value that is another; else None."""
    for name, value in values.items():
        now, before = _seen(value), captured.get(name)
        if now != before:
            return name, *_told(before, now)
    missing = next((name for name in captured if name not in values), None)
    return None if missing is None else (missing, str(captured[missing]), "nothing")


def _seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Address(value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
    return value


def _told(before: Any, now: Any) -> tuple[str, str]:
    """Both sides, of an address only what differs."""
    if not isinstance(before, Address) or not isinstance(now, Address):
        return str(before), str(now)
    names = [
        name
        for name in ("shape", "dtype", "stride", "pointer")
        if getattr(before, name) != getattr(now, name)
    ]
    return tuple(
        ", ".join(f"{_NAMES[name]} {_text(getattr(side, name))}" for name in names) for side in (before, now)
    )  # type: ignore[return-value]


_NAMES = {"shape": "shape", "dtype": "dtype", "stride": "strides", "pointer": "address"}


def _text(value: Any) -> str:
    return hex(value) if isinstance(value, int) else str(value)
