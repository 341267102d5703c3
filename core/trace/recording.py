"""The code factor of one compiled part, put together after its trace: while compiling only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from graphkiln.core.errors import CompileError
from graphkiln.core.trace.ambient import ambient_state
from graphkiln.core.trace.capture import Capture
from graphkiln.core.trace.classes import class_table, method_names, refuse_root_hooks
from graphkiln.core.trace.code import check_code, stored_value
from graphkiln.core.trace.custom_ops import record_ops
from graphkiln.core.trace.fold import fold
from graphkiln.core.trace.functions import CodeDigests, bytecode_digest, record_functions
from graphkiln.core.trace.guards import collect
from graphkiln.core.trace.kernels import record_kernels
from graphkiln.core.trace.signature import parameter_signature


@dataclass(frozen=True)
class TracedCode:
    """`factor` is the part's code factor; `sources` the shortcut `{module: {file_sha256, functions}}`."""

    factor: dict[str, Any]
    sources: dict[str, dict[str, Any]]


def record_code(module: torch.nn.Module, capture: Capture, smallest: int) -> TracedCode:
    """Returns the code factor of a trace, tested against the model that was traced.

    `smallest` is the least token count that the part serves. Raises Bypass for what has no stored
    form, CompileError when the records disagree with the very model that they came from.
    """
    capture.inlined.raise_refusal()
    refuse_root_hooks(module)
    digests = CodeDigests()
    values = collect(capture.guard_entries, capture.aliases, module, digests)
    reachable = frozenset(
        bytecode_digest(entry.value.__code__)
        for entry in capture.guard_entries
        if hasattr(entry.value, "__code__") and hasattr(entry.value.__code__, "co_code")
    )
    functions = record_functions(capture.inlined.codes, digests, reachable)
    methods = method_names(code.co_qualname for code in capture.inlined.codes)
    kernels = record_kernels([capture.graph], digests)
    factor = {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "functions": functions,
        "environment": {
            name: stored_value(name, value) for name, value in sorted(capture.inlined.environment.items())
        },
        "ambient": ambient_state(),
        "parameters": parameter_signature(module),
        "classes": class_table(module, methods, digests),
        "ops": record_ops([capture.graph], digests),
        **({"kernels": kernels} if kernels else {}),
        "values": fold(values),
        "smallest": smallest,
    }
    found = check_code(factor, digests.used, module)
    if found:
        raise CompileError(
            "self-test",
            f"{found[0].name} was recorded as {found[0].then!r} and reads {found[0].now!r} on the same model",
            "report this model: its guards are not understood",
        )
    return TracedCode(factor, digests.used)
