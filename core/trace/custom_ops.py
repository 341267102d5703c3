"""The custom ops in a graph: schema and fake implementation decide what is compiled around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._library.simple_registry import singleton
from torch._ops import OpOverload, OpOverloadPacket

from graphkiln.cache.factors.difference import Difference
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.observe import identity

_TORCH_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "mkldnn", "inductor", "higher_order", "c10d"}
)


def record_ops(graphs: Iterable[torch.fx.GraphModule], digests: CodeDigests) -> dict[str, Any]:
    """Returns `{namespace::op.overload: {"schema", "fake"}}` of the ops in `graphs` that are not torch's."""
    found: dict[str, Any] = {}
    for graph in graphs:
        for node in graph.graph.nodes:
            for op in _overloads(node.target):
                if op.namespace not in _TORCH_NAMESPACES:
                    found[f"{op._schema.name}.{op._overloadname}"] = _describe(op, digests)
    return dict(sorted(found.items()))


def check_ops(then: Mapping[str, Any], digests: CodeDigests) -> list[Difference]:
    """Returns how the registered ops differ from the recorded ones."""
    found = []
    for name, recorded in sorted(then.items()):
        op = find_op(name)
        now = _describe(op, digests) if op is not None else None
        if now != recorded:
            found.append(
                Difference(
                    "code", f"op {name}", recorded, now, remedy="register the op as it was, or compile again"
                )
            )
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


def _describe(op: OpOverload, digests: CodeDigests) -> dict[str, Any]:
    fake = singleton.find(op._schema.name).fake_impl.kernel
    return {"schema": str(op._schema), "fake": None if fake is None else identity(fake.func, digests)}
