"""One trace of a small module, as a start would make it."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.part import Part, arguments_like
from graphkiln.core.plan import Plan, plan_for_class

with warnings.catch_warnings():
    # Of what torch itself still uses: a test of ours should not end there.
    warnings.simplefilter("ignore")
    importlib.import_module("torch._inductor.compile_fx")

from graphkiln.core.tracing import TracedPart, trace_part


@functools.cache
def plan(largest: int = 2048, compile_sizes: tuple[int, ...] = ()) -> Plan:
    deployment = Deployment("toy", max_num_batched_tokens=largest)
    config = CompilationConfig(compile_sizes=compile_sizes)
    return plan_for_class(deployment, config, "toy", "float32", "cpu")


def trace(
    module: Any, *arguments: Any, largest: int = 2048, compile_sizes: tuple[int, ...] = (), **named: Any
) -> TracedPart:
    """Returns the trace of a decorated module, called with `arguments`, by default ones of [T, 4]."""
    given: Sequence[Any] = arguments or (torch.ones(5, 4),)
    part = Part("backbone", module, arguments_like(module, given, named))
    return trace_part(part, plan(largest, compile_sizes))
