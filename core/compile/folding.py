"""Constants that are computed while compiling: only by operators that give one result on every device.

Of constants of equal elements Inductor runs element-wise operators itself, and writes the value into the
code. For a GPU it runs them on that GPU; where the GPU is only described they run on the CPU. A sum, a
product or a comparison is rounded to one result everywhere. A sine is what a library makes of it, a
quotient by a number is a product with its inverse on CUDA: these stay in the code, to be computed where
it runs. So an entry says the same wherever it was made.

Private torch calls: `joint_graph.UniformValueConstantFolder._deduce_value`; tried on torch 2.11.0 and 2.13.0.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

_EXACT = frozenset(
    {
        "abs", "add", "alias", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp",
        "clamp_max", "clamp_min", "clone", "convert_element_type", "eq", "fill", "floor", "full_like", "ge",
        "gt", "le", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "maximum", "minimum",
        "mul", "ne", "neg", "ones_like", "rsub", "scalar_tensor", "sign", "sub", "trunc", "where",
        "zeros_like", "_to_copy",
    }
)  # fmt: skip


@contextlib.contextmanager
def exact_folding() -> Iterator[None]:
    """Inside, Inductor leaves what may differ between devices in the code."""
    from torch._inductor.fx_passes import joint_graph

    folder = joint_graph.UniformValueConstantFolder
    original = folder._deduce_value

    def deduce_value(self: Any, node: fx.Node) -> Any:
        return original(self, node) if is_exact(node) else self.unknown_value

    with unittest.mock.patch.object(folder, "_deduce_value", deduce_value):
        yield


def is_exact(node: fx.Node) -> bool:
    """Whether a node of a lowered graph gives the same value on every device, run on constants."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return True
    if target.overloadpacket.__name__ not in _EXACT or node.kwargs.get("alpha", 1) != 1:
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return False
    # What a float that no integer can hold becomes is not said anywhere.
    floats = (one.meta.get("val") for one in node.all_input_nodes)
    from_float = any(isinstance(one, torch.Tensor) and one.is_floating_point() for one in floats)
    return value.is_floating_point() or value.dtype is torch.bool or not from_float
