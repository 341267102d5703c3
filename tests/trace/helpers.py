"""What the toy of the guard tests reaches outside its own module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

STRENGTH = 3.0
TABLE = {"shift": 0.5, "unused": 1.0}


def strengthen(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    """A function of another module, with a default and a global."""
    return x * STRENGTH * by + TABLE["shift"]


def added(x: torch.Tensor, amount: float) -> torch.Tensor:
    return x + amount


def closed_over(amount: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x - amount

    return inner


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return function(*args)

    return wrapped


@wrapping
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def unrelated(x: torch.Tensor) -> torch.Tensor:
    return x
