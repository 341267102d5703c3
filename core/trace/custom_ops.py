"""The custom ops in a graph: schema and fake implementation decide what is compiled around them.

What is registered for them is found by `registered`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from graphkiln.cache.factors.difference import Difference
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.observe import identity
from graphkiln.core.trace.reach import first_change, function_reach, value_reach
from graphkiln.core.trace.registered import TORCH_NAMESPACES, body_of, fake_of


def record_ops(graphs: Iterable[torch.fx.GraphModule], digests: CodeDigests) -> dict[str, Any]:
    """Returns `{namespace::op.overload: {"schema", "fake"}}` of the ops in `graphs` that are not torch's.

    One that is compiled through to the Triton kernels that it runs (`triton_op`) is recorded with its body.
    Raises Bypass for a body that cannot be compared, and for any other op that is compiled through.
    """
    found: dict[str, Any] = {}
    for graph in graphs:
        for node in graph.graph.nodes:
            for op in _overloads(node.target):
                if op.namespace not in TORCH_NAMESPACES:
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


def _describe(op: OpOverload, digests: CodeDigests) -> dict[str, Any]:
    body, fake = body_of(op), fake_of(op)
    described: dict[str, Any] = {"schema": str(op._schema), "fake": None}
    if fake is not None:
        plain = isinstance(fake, FunctionType)
        described["fake"] = identity(fake, digests) if plain else value_reach(op.name(), fake, digests)
    if body is not None:
        described["body"] = function_reach(body, digests)
    return described
