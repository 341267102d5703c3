"""How a module is compiled and how CUDA graphs serve it, as enumerations with the names that users know."""

from __future__ import annotations

import enum

from graphkiln.core.config.fields import member


class CompilationMode(enum.IntEnum):
    """How a decorated module is run; the numbers are those that `-cc.mode=3` takes.

    NONE runs it eagerly. STOCK_TORCH_COMPILE hands the whole model to torch.compile. DYNAMO_TRACE_ONCE
    traces once, drops the guards and gives the whole graph to the backend. VLLM_COMPILE splits the
    graph and compiles its pieces, with cache, compile ranges and passes.
    """

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


class CUDAGraphMode(enum.Enum):
    """Which steps are served by CUDA graphs: the value is (for uniform decode, for mixed batches)."""

    NONE = ("NONE", "NONE")
    PIECEWISE = ("PIECEWISE", "PIECEWISE")
    FULL = ("FULL", "FULL")
    FULL_DECODE_ONLY = ("FULL", "NONE")
    FULL_AND_PIECEWISE = ("FULL", "PIECEWISE")

    @property
    def decode(self) -> CUDAGraphMode:
        """What serves a step of uniform decode: NONE, PIECEWISE or FULL."""
        return CUDAGraphMode[self.value[0]]

    @property
    def mixed(self) -> CUDAGraphMode:
        """What serves any other step: NONE, PIECEWISE or FULL."""
        return CUDAGraphMode[self.value[1]]

    @property
    def piecewise(self) -> bool:
        """Whether some steps need a graph for each piece."""
        return "PIECEWISE" in self.value

    @property
    def full(self) -> bool:
        """Whether some steps need one graph for the whole model."""
        return "FULL" in self.value

    @property
    def separate(self) -> bool:
        """Whether decode and mixed batches are served in two ways."""
        return self.decode is not self.mixed

    def without_piecewise(self) -> CUDAGraphMode:
        """Returns what is left where a graph for each piece cannot be had."""
        if self is CUDAGraphMode.FULL_AND_PIECEWISE:
            return CUDAGraphMode.FULL_DECODE_ONLY
        return CUDAGraphMode.NONE if self is CUDAGraphMode.PIECEWISE else self


class PerformanceMode(enum.Enum):
    """What the capture sizes are made for; INTERACTIVITY captures each small size by itself."""

    BALANCED = "balanced"
    INTERACTIVITY = "interactivity"
    THROUGHPUT = "throughput"


class DynamicShapesType(enum.Enum):
    """How the token count is traced.

    BACKED gives the symbol an example value; UNBACKED gives it none, so that no fact about the
    example can slip in; BACKED_SIZE_OBLIVIOUS has an example that does not decide branches on size.
    """

    BACKED = "backed"
    UNBACKED = "unbacked"
    BACKED_SIZE_OBLIVIOUS = "backed_size_oblivious"


def mode_of(value: object) -> CompilationMode:
    """Returns the mode that a number or a name in any case means. Raises ValueError listing the modes."""
    if isinstance(value, str) and not value.isdecimal():
        return member("mode", value, CompilationMode)
    try:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(value)
        return CompilationMode(int(value))
    except ValueError:
        names = ", ".join(f"{mode.name} ({mode.value})" for mode in CompilationMode)
        raise ValueError(f"mode: {value!r} is not one of {names}") from None


def level_of(value: object) -> int:
    """Returns 0 to 3 for a level written 2, "2" or "O2". Raises ValueError."""
    name = str(value).upper().removeprefix("O") if type(value) in (int, str) else ""
    if name not in ("0", "1", "2", "3"):
        shown = value if isinstance(value, str) and value.isdecimal() else repr(value)
        raise ValueError(f"optimization_level: {shown} is not one of 0, 1, 2, 3")
    return int(name)
