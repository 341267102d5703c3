"""The code factor of one compiled part, checked before a load.

What is checked is what is in the key; the check goes from cheap to dear and every difference has a
name. The digests of whole files ride beside it as a shortcut and are in no key.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.functions import check_functions
from graphkiln.core.trace.ambient import ambient_state
from graphkiln.core.trace.classes import check_classes, check_root
from graphkiln.core.trace.custom_ops import check_ops
from graphkiln.core.trace.fold import unfold
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.kernels import check_kernels
from graphkiln.core.trace.records import check_records
from graphkiln.core.trace.signature import check_signature

_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW", re.IGNORECASE)


def check_code(
    factor: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]], module: torch.nn.Module
) -> list[Difference]:
    """Returns how a live model differs from a part's code factor, [] when it is the model that was compiled.

    Stops after the first kind of difference: a changed function makes later ones follow from it.
    """
    digests = CodeDigests(sources)
    checks: tuple[Callable[[], list[Difference]], ...] = (
        lambda: check_source(factor, sources),
        lambda: check_live(factor, module),
        lambda: check_classes(factor["classes"], module, digests),
        lambda: check_root(module),
        lambda: check_ops(factor["ops"], digests),
        lambda: check_kernels(factor.get("kernels", {}), digests),
        lambda: check_records(unfold(factor["values"]), module, digests),
    )
    for check in checks:
        found = check()
        if found:
            return found
    return []


def check_source(factor: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Returns differences that need no model: source text of traced functions, variables that were read."""
    recorded = {
        name: {"file_sha256": sources.get(name, {}).get("file_sha256"), "functions": functions}
        for name, functions in factor["functions"].items()
    }
    found = check_functions(recorded)
    for name, then in factor["environment"].items():
        now = stored_value(name, os.environ.get(name))
        if now != then:
            remedy = f"unset {name}" if then is None else f"set {name}={then}"
            found.append(Difference("code", f"environment {name}", then, now, remedy=remedy))
    return found


def check_live(factor: Mapping[str, Any], module: torch.nn.Module) -> list[Difference]:
    """Returns differences in torch's global state, the module's class and its parameters."""
    then, now = factor["ambient"], ambient_state()
    found = [
        Difference(
            "code", f"torch state {name}", then.get(name), now.get(name), remedy=f"restore torch's {name}"
        )
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    if name != factor["class"]:
        found.append(Difference("code", "class", factor["class"], name, remedy="compile again"))
    return found or check_signature(factor["parameters"], module)


def stored_value(name: str, value: str | None) -> str | None:
    """Returns a variable's value as it is stored: a digest where the name says that it is a secret."""
    if value is not None and _SECRET.search(name):
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()
    return value
