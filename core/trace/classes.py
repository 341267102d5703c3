"""The methods that live classes really have: closes what Dynamo does not guard.

A method replaced on a class (as kernel-patching libraries do), a hook on the root module, a
`forward` put on an instance: none of them leaves a guard that would notice.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from graphkiln.cache.factors.difference import Difference
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.observe import identity, type_name

ClassTable = dict[str, dict[str, Any]]

_ROOT_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def class_table(module: torch.nn.Module, method_names: Iterable[str], digests: CodeDigests) -> ClassTable:
    """Returns `{class: {method: identity}}` of every class in the module tree, of the traced method names."""
    names = sorted(set(method_names) | {"forward"})
    table: ClassTable = {}
    for kind in {type(part) for part in module.modules()}:
        methods: dict[str, Any] = {}
        for name in names:
            found = inspect.getattr_static(kind, name, None)
            if isinstance(found, (types.FunctionType, staticmethod, classmethod)):
                methods[name] = identity(found, digests)
        table[type_name(kind)] = methods
    return dict(sorted(table.items()))


def method_names(qualnames: Iterable[str]) -> set[str]:
    """Returns the last parts of qualified names that can be methods of a live module.

    Constructors are left out: a live module is past them, and Dynamo itself replaces `Module.__init__`.
    """
    names = {name.rpartition(".")[2] for name in qualnames if "." in name and not name.endswith(">")}
    return names - {"__init__", "__new__", "__setattr__", "__init_subclass__"}


def check_classes(
    then: Mapping[str, Mapping[str, Any]], module: torch.nn.Module, digests: CodeDigests
) -> list[Difference]:
    """Returns how the live classes differ from a recorded table."""
    names = {name for methods in then.values() for name in methods}
    now = class_table(module, names, digests)
    found = []
    for kind in sorted({*then, *now}):
        before, after = then.get(kind), now.get(kind)
        if before is None or after is None:
            found.append(
                Difference(
                    "code", f"class {kind}", _presence(before), _presence(after), remedy="compile again"
                )
            )
            continue
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                found.append(
                    Difference(
                        "code", f"{kind}.{name}", before.get(name), after.get(name),
                        remedy=f"put the original {name} back on {kind}, or compile again",
                    )
                )  # fmt: skip
    return found


def _presence(methods: Any) -> str | None:
    return "in the model" if methods is not None else None


def check_root(module: torch.nn.Module) -> list[Difference]:
    """Returns the hooks on the root and a `forward` on the instance: compiled code would skip them."""
    found = [
        Difference(
            "code",
            f"self.{name}",
            0,
            len(hooks),
            remedy="remove the hook from the root module, or run it outside",
        )
        for name in _ROOT_HOOKS
        if (hooks := getattr(module, name, None))
    ]
    if "forward" in module.__dict__:
        found.append(
            Difference("code", "self.forward", None, "set on the instance", remedy="delete it", kind="added")
        )
    return found


def refuse_root_hooks(module: torch.nn.Module) -> None:
    """Raises Bypass when the root carries what a compiled call would skip."""
    found = check_root(module)
    if found:
        raise Bypass("code", f"{found[0].name} on the root module is not part of what is compiled")
