"""What a resolution decided, in order: nothing is lowered without a line here."""

from __future__ import annotations

import enum
from typing import Any

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.report import Decision


class Trail:
    """Collects decisions while one resolution runs."""

    def __init__(self) -> None:
        self._decisions: list[Decision] = []

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._decisions)

    def decide(self, field: str, asked: Any, got: Any, reason: str) -> None:
        """Records that `field` became something else than was asked; equal values are no decision."""
        before, after = _plain(asked), _plain(got)
        if before != after:
            self._decisions.append(Decision(field, before, after, reason))

    def decide_mode(self, asked: CUDAGraphMode | None, got: CUDAGraphMode, reason: str) -> CUDAGraphMode:
        """Records and returns a CUDA graph mode."""
        self.decide("cudagraph_mode", asked, got, reason)
        return got


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    return list(value) if isinstance(value, tuple) else value
