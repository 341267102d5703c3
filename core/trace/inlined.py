"""A hook on Dynamo's inliner: every function that a trace went through, and every variable it read.

Dynamo's own list misses functions that were left by a caught exception, and leaves no guard for most
reads of the environment. Both go through one function, `build_inline_tracer` (torch 2.11: four
arguments, 2.13: five).
"""

from __future__ import annotations

import contextlib
import os
import types
import unittest.mock
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.symbolic_convert import InliningInstructionTranslator
from torch._dynamo.variables import functions as dynamo_functions

from graphkiln.core.errors import Bypass

_READ = os._Environ.__getitem__.__code__
_WHOLE = frozenset(
    getattr(os._Environ, name).__code__
    for name in ("__iter__", "__len__", "copy", "__repr__")
    if hasattr(os._Environ, name)
)
_WRITE = frozenset(getattr(os._Environ, name).__code__ for name in ("__setitem__", "__delitem__"))

# Mapping views walk a dict name by name: more names than a model reads is a walk.
_MANY = 20


@dataclass
class Inlined:
    """What one trace went through: code objects in order of first entry, and variables by name."""

    codes: dict[types.CodeType, None] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    refusal: Bypass | None = None

    def raise_refusal(self) -> None:
        """Raises what the hook could not raise from inside Dynamo, which would turn it into a graph break."""
        if self.refusal is not None:
            raise self.refusal
        if len(self.environment) > _MANY:
            raise Bypass(
                "code", f"the model reads {len(self.environment)} environment variables while it is traced"
            )


@contextlib.contextmanager
def record_inlined(root: types.CodeType, environ: Mapping[str, str] = os.environ) -> Iterator[Inlined]:
    """Collects what is inlined inside, starting with the traced function's own code."""
    found = Inlined({root: None})
    original = InliningInstructionTranslator.build_inline_tracer

    def build(parent: Any, func: Any, args: Any, kwargs: Any, *more: Any, **named: Any) -> Any:
        if getattr(func, "get_code", None) is not None:
            code = func.get_code()
            found.codes[code] = None
            _note_environment(found, code, args, environ)
        return original(parent, func, args, kwargs, *more, **named)

    assume = dynamo_functions.invoke_and_store_as_constant

    def assumed(tx: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if not fn.__module__.startswith("torch"):
            found.refusal = Bypass(
                "code", f"{fn.__qualname__} is marked assume_constant_result: its inputs leave no trace"
            )
        return assume(tx, fn, *args, **kwargs)

    with (
        unittest.mock.patch.object(InliningInstructionTranslator, "build_inline_tracer", staticmethod(build)),
        unittest.mock.patch.object(dynamo_functions, "invoke_and_store_as_constant", assumed),
    ):
        yield found


def _note_environment(found: Inlined, code: types.CodeType, args: Any, environ: Mapping[str, str]) -> None:
    if code is _READ:
        key = args[1]
        if not key.is_python_constant():
            found.refusal = Bypass(
                "code", "the model reads an environment variable whose name is computed from data"
            )
            return
        name = key.as_python_constant()
        found.environment[name] = environ.get(name)
    elif code in _WHOLE:
        found.refusal = Bypass("code", "the model reads the whole environment while it is traced")
    elif code in _WRITE:
        found.refusal = Bypass("code", "the model sets an environment variable while it is traced")
