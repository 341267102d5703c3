"""Telling a user's Triton kernel from other objects, in a process that may not have Triton at all."""

from __future__ import annotations

from typing import Any

_KINDS = frozenset({"JITFunction", "Autotuner", "Heuristics"})


def is_kernel(value: Any) -> bool:
    """Says whether an object is what `triton.jit` makes of a function, or a tuner around it."""
    kind = type(value)
    return kind.__name__ in _KINDS and kind.__module__.startswith("triton.runtime.")


def function_of(kernel: Any) -> Any:
    """Returns the Python function that a kernel was made of, whatever is around it."""
    while is_kernel(kernel):
        kernel = kernel.fn
    return kernel


def kernel_name(kernel: Any) -> str:
    """Returns `module:qualified name` of a kernel."""
    function = function_of(kernel)
    return f"{function.__module__}:{function.__qualname__}"
