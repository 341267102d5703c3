"""The errors of `graphkiln.core.graphs`.

CoreError                          (graphkiln.core.errors)
+- OutOfGraphMemory                the device has no memory left for a graph
+- CaptureRefused                  a step found no graph, and now is not the time to capture one
+- MovedTensor                     a graph would read a tensor where it no longer lies
+- NestedCapture                   a breakable capture began inside another
+- NoCudaDevice                    the model lies on a device that has no CUDA graphs
+- CheckFailed                     (graphkiln.core.errors)
   +- ReplayDiffers                a captured graph and eager disagree
"""

from __future__ import annotations

from graphkiln.core.errors import CheckFailed, CoreError


class OutOfGraphMemory(CoreError):
    """The device has no memory left for a graph: `mode`, `num_tokens`, and what it said as `detail`."""

    def __init__(self, mode: str, num_tokens: int, detail: str) -> None:
        super().__init__(mode, num_tokens, detail)
        self.mode, self.num_tokens, self.detail = mode, num_tokens, detail

    def __str__(self) -> str:
        return f"no memory is left for the {self.mode} graph of {self.num_tokens} tokens: {self.detail}"


class CaptureRefused(CoreError):
    """A step found no graph, and now is not the time to capture one: `name`, `mode`, `num_tokens`."""

    def __init__(self, name: str, mode: str, num_tokens: int) -> None:
        super().__init__(name, mode, num_tokens)
        self.name, self.mode, self.num_tokens = name, mode, num_tokens

    def __str__(self) -> str:
        return (
            f"{self.name} has no {self.mode} graph of {self.num_tokens} tokens, and graphs are captured "
            "only before a model serves"
        )


class MovedTensor(CoreError):
    """A graph would read a tensor where it no longer lies: `graph`, `tensor`, `captured`, `came`."""

    def __init__(self, graph: str, tensor: str, captured: str, came: str) -> None:
        super().__init__(graph, tensor, captured, came)
        self.graph, self.tensor, self.captured, self.came = graph, tensor, captured, came

    def __str__(self) -> str:
        return (
            f"the graph of {self.graph} was captured with {self.tensor} of {self.captured}, "
            f"and is replayed with {self.came}: capture again after tensors were replaced"
        )


class NestedCapture(CoreError):
    """A breakable capture began inside another."""

    def __str__(self) -> str:
        return "a breakable capture cannot begin inside another"


class NoCudaDevice(CoreError):
    """The model lies on a device that has no CUDA graphs: `device`."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.device = device

    def __str__(self) -> str:
        return f"CUDA graphs are captured on a CUDA device, and the model lies on {self.device}"


class ReplayDiffers(CheckFailed):
    """A captured graph and eager disagree: as `CheckFailed`, with the graph's `mode`."""

    def __init__(self, num_tokens: int, error: float, tolerance: float, mode: str) -> None:
        CoreError.__init__(self, num_tokens, error, tolerance, mode)
        self.num_tokens, self.error, self.tolerance, self.mode = num_tokens, error, tolerance, mode

    def __str__(self) -> str:
        return (
            f"check failed at {self.num_tokens} tokens: the {self.mode} graph and eager differ by "
            f"{self.error:.3g}, the tolerance is {self.tolerance:.3g}"
        )
