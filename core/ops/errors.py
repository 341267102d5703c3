"""The errors of `graphkiln.core.ops`.

CoreError                          (graphkiln.core.errors)
+- NoForwardContext                an attention op ran outside `set_forward_context`
+- UnknownLayer                    a layer name that the forward context does not hold
+- OutOfBlocks                     the KV cache has no free block left
+- NoAttentionBackend              no attention backend computes the model's layers
+- KernelNotSealed                 a launch that the entry has no code for, where none can be compiled
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkiln.core.errors import CoreError


class NoForwardContext(CoreError):
    """An attention op ran outside `set_forward_context`: `op` names it."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.op = op

    def __str__(self) -> str:
        return f"{self.op} was called outside set_forward_context: there is no KV cache to use"


class UnknownLayer(CoreError):
    """A layer name that the forward context does not hold: `layer`, `held`."""

    def __init__(self, layer: str, held: tuple[str, ...]) -> None:
        super().__init__(layer, held)
        self.layer, self.held = layer, held

    def __str__(self) -> str:
        return f"the forward context has no layer {self.layer!r}; it holds {len(self.held)} layers"


class OutOfBlocks(CoreError):
    """The KV cache has no free block left: `wanted` were asked for, `free` are there."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(wanted, free)
        self.wanted, self.free = wanted, free

    def __str__(self) -> str:
        return f"the KV cache has {self.free} free blocks, {self.wanted} are needed"


class NoAttentionBackend(CoreError):
    """No attention backend computes the model's layers: `name` asked for, `refusals` by backend."""

    def __init__(self, name: str | None, refusals: Mapping[str, str]) -> None:
        super().__init__(name, refusals)
        self.name, self.refusals = name, dict(refusals)

    def __str__(self) -> str:
        told = "; ".join(f"{name}: {why}" for name, why in self.refusals.items())
        return f"no attention backend computes this model ({told})"


class KernelNotSealed(CoreError):
    """A launch of `kernel` that no code is there for: `difference` from what there is, `why_not` compiled."""

    def __init__(self, kernel: str, difference: str, why_not: str) -> None:
        super().__init__(kernel, difference, why_not)
        self.kernel, self.difference, self.why_not = kernel, difference, why_not

    def __str__(self) -> str:
        return (
            f"the entry has no {self.kernel} for this step ({self.difference}), "
            f"and it cannot be compiled here: {self.why_not}"
        )
