"""The errors of `graphkiln.core.graphs`.

CoreError                          (graphkiln.core.errors)
+- OutOfGraphMemory                the device has no memory left for a graph
"""

from __future__ import annotations

from graphkiln.core.errors import CoreError


class OutOfGraphMemory(CoreError):
    """The device has no memory left for a graph: `mode`, `num_tokens`, and what it said as `detail`."""

    def __init__(self, mode: str, num_tokens: int, detail: str) -> None:
        super().__init__(mode, num_tokens, detail)
        self.mode, self.num_tokens, self.detail = mode, num_tokens, detail

    def __str__(self) -> str:
        return f"no memory is left for the {self.mode} graph of {self.num_tokens} tokens: {self.detail}"
