"""Ways to run a model that leave nothing to keep: torch.compile as it is, and the split graph run eagerly."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from graphkiln.cache.factors.difference import Difference
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import CompilationMode
from graphkiln.core.part import Part
from graphkiln.core.plan import Plan
from graphkiln.core.trace.arguments import IntermediateTensors

if TYPE_CHECKING:
    from graphkiln.core.tracing import TracedPart


def mode_none(plan: Plan) -> Difference:
    """Returns why nothing was compiled, with what to type for it to be."""
    remedy = "use -O1 or higher, or -cc.mode=VLLM_COMPILE"
    if plan.config.enforce_eager:
        remedy = "leave --enforce-eager out"
    elif plan.config.compiles:
        remedy = next(decision.reason for decision in plan.decisions if decision.field == "mode")
    return Difference("config", "compilation.mode", "VLLM_COMPILE", "NONE", remedy=remedy)


def why_uncached(compilation: EffectiveConfig) -> Difference | None:
    """Returns why a start under this configuration has nothing to find or to publish, None when it has."""
    if compilation.mode is CompilationMode.STOCK_TORCH_COMPILE:
        mode, remedy = compilation.mode.name, "use mode VLLM_COMPILE or DYNAMO_TRACE_ONCE"
        return Difference("config", "compilation.mode", "VLLM_COMPILE", mode, relevant=True, remedy=remedy)
    if compilation.backend == "eager":
        remedy = "use backend inductor"
        return Difference("config", "compilation.backend", "inductor", "eager", relevant=True, remedy=remedy)
    return None


def stock_compile(part: Part, compilation: EffectiveConfig) -> Callable[..., Any]:
    """Returns torch.compile's own form of a part, its token count marked dynamic at every call."""
    options = dict(compilation.inductor_compile_config) if compilation.backend == "inductor" else None
    compiled = torch.compile(
        part.module.forward, fullgraph=True, backend=compilation.backend, options=options or None
    )
    dims = part.dynamic
    signature = inspect.signature(part.module.forward)

    def serve(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            for tensor in value.tensors.values() if isinstance(value, IntermediateTensors) else (value,):
                if isinstance(tensor, torch.Tensor):
                    for dim in dims.get(name, ()):
                        torch._dynamo.maybe_mark_dynamic(tensor, dim)
        return compiled(*args, **kwargs)

    return serve


def eager_part(part: Part, traced: TracedPart, plan: Plan) -> Callable[..., Any]:
    """Returns a part that runs its split graph op by op: the wiring without a compiler."""
    from graphkiln.core.compile.build import split_capture, wire
    from graphkiln.core.compile.execute import CompiledPart
    from graphkiln.core.trace.paths import Walker

    bounds = [(traced.smallest, plan.ranges(traced.smallest, part.encoder)[-1].end)]
    split, pieces, piece_of = split_capture(traced.capture, plan.compilation.cutting_ops)
    wiring = wire(split, piece_of, part.module, traced.capture, part.dynamic, bounds)
    wiring["pieces"] = [{"piece": number, "range": bounds[0]} for number in range(len(pieces))]
    run = [_EagerPiece(piece.graph) for piece in pieces]
    return CompiledPart(wiring, run, part.module, Walker(part.module).walk)


class _EagerPiece:
    """A piece that is its own graph."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self._graph = graph

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        result = self._graph(*inputs)
        return result if isinstance(result, (tuple, list)) else (result,)
