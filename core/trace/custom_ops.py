"""The custom ops in a graph: schema and fake implementation decide what is compiled around them.

Tried on torch 2.13.0; private there: `simple_registry.singleton`, `triton_ops_to_kernels`, the
closures around a registered fake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._library.simple_registry import singleton
from torch._library.triton import triton_ops_to_kernels
from torch._ops import OpOverload, OpOverloadPacket

from graphkiln.cache.factors.difference import Difference
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.observe import identity
from graphkiln.core.trace.reach import first_change, function_reach

_TORCH_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "mkldnn", "inductor", "higher_order", "c10d"}
)


def record_ops(graphs: Iterable[torch.fx.GraphModule], digests: CodeDigests) -> dict[str, Any]:
    """Returns `{namespace::op.overload: {"schema", "fake"}}` of the ops in `graphs` that are not torch's.

    One that is compiled through to the Triton kernels that it runs (`triton_op`) is recorded with its body.
    Raises Bypass for a body that cannot be compared, and for any other op that is compiled through.
    """
    found: dict[str, Any] = {}
    for graph in graphs:
        for node in graph.graph.nodes:
            for op in _overloads(node.target):
                if op.namespace not in _TORCH_NAMESPACES:
                    _refuse_seen_through(op)
                    found[f"{op._schema.name}.{op._overloadname}"] = _describe(op, digests)
    return dict(sorted(found.items()))


def check_ops(then: Mapping[str, Any], digests: CodeDigests) -> list[Difference]:
    """Returns how the registered ops differ from the recorded ones."""
    found = []
    for name, recorded in sorted(then.items()):
        op = find_op(name)
        try:
            now = _describe(op, digests) if op is not None else None
        except Bypass as bypass:
            now = {"body": str(bypass)}
        if now != recorded:
            was, found_now = first_change(recorded, now) if "body" in recorded else (recorded, now)
            remedy = "register the op as it was, or compile again"
            found.append(Difference("code", f"op {name}", was, found_now, remedy=remedy))
    return found


def find_op(name: str) -> OpOverload | None:
    """Returns the op called `namespace::op.overload`, None when nothing registered it."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None) if _exists(namespace, base) else None
    return getattr(packet, overload or "default", None)


def _exists(namespace: str, base: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(f"{namespace}::{base}"))


def _overloads(target: Any) -> Iterable[OpOverload]:
    if isinstance(target, OpOverload):
        return (target,)
    if isinstance(target, OpOverloadPacket):
        return tuple(getattr(target, name) for name in target.overloads())
    return ()


def _refuse_seen_through(op: OpOverload) -> None:
    name = op._schema.name
    if name in triton_ops_to_kernels:
        return
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    if composite or singleton.find(name).torch_dispatch_rules._data:
        raise Bypass("code", f"the op {name} is compiled through to what it runs, which leaves no record")


def _describe(op: OpOverload, digests: CodeDigests) -> dict[str, Any]:
    fake = singleton.find(op._schema.name).fake_impl.kernel
    own = None if fake is None else _registered(fake.func)
    described = {
        "schema": str(op._schema),
        "fake": None if own is None else identity(own, digests),
    }
    if own is not None and op._schema.name in triton_ops_to_kernels:
        # What makes its result in fake mode is its body.
        described["body"] = function_reach(own, digests)
    return described


def _registered(function: Any) -> Any:
    """Returns the function that an author registered; torch keeps it inside wrappers of its own."""
    while str(getattr(function, "__module__", "")).startswith("torch.") and function.__closure__:
        cells = [cell.cell_contents for cell in function.__closure__]
        held = [cell._abstract_fn for cell in cells if isinstance(cell, CustomOpDef)]
        inner = next((cell for cell in [*held, *cells] if isinstance(cell, FunctionType)), None)
        if inner is None:
            break
        function = inner
    return function
