"""What an author registered for a custom op: the function that traces run in its place, and its body.

Tried on torch 2.13.0; private there: `simple_registry.singleton`, the closures around what is registered,
`CustomOpDef._torch_dispatch_fns`.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._library.simple_registry import singleton
from torch._ops import OpOverload

from graphkiln.core.errors import Bypass

TORCH_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "mkldnn", "inductor", "higher_order", "c10d"}
)


def fake_of(op: OpOverload) -> Any:
    """Returns the fake implementation that an author registered, None where there is none in Python."""
    fake = singleton.find(op._name).fake_impl.kernel
    return None if fake is None else _registered(fake.func)


def body_of(op: OpOverload) -> FunctionType | None:
    """Returns what an op is compiled through to (`triton_op`), None where it stays the op that it is.

    Raises Bypass for an op that is compiled through and is not made in that way, or not any more.
    """
    rules = singleton.find(op._name).torch_dispatch_rules._data
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    if not rules and not composite:
        return None
    found: FunctionType | None = None if composite else _decomposed(rules)
    if found is None:
        raise Bypass(
            "code", f"the op {op._schema.name} is compiled through to what it runs, which leaves no record"
        )
    fake: object = fake_of(op)
    if found is not fake:
        # What the trace sees and what is compiled would be two functions.
        raise Bypass("code", f"the op {op._schema.name} has a fake implementation beside its body")
    return found


def _decomposed(rules: dict[type, Any]) -> FunctionType | None:
    """Returns what torch's own rule for a `triton_op` runs; None where there is any other rule."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    if list(rules) != [FunctionalTensorMode]:
        return None
    made = [held for held in _cells(rules[FunctionalTensorMode]) if isinstance(held, CustomOpDef)]
    rule = made[0]._torch_dispatch_fns.get(FunctionalTensorMode) if made else None
    if rule is None or rule.__module__ != "torch._library.triton":
        return None
    bodies = [held for held in _cells(rule) if isinstance(held, FunctionType)]
    return bodies[0] if len(bodies) == 1 else None


def _registered(function: Any) -> Any:
    """Returns the function that an author registered; torch keeps it inside wrappers of its own."""
    while str(getattr(function, "__module__", "")).startswith("torch.") and _cells(function):
        cells = _cells(function)
        held = [cell._abstract_fn for cell in cells if isinstance(cell, CustomOpDef)]
        inner = next((cell for cell in [*held, *cells] if isinstance(cell, FunctionType)), None)
        if inner is None:
            break
        function = inner
    return function


def _cells(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
