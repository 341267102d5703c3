"""The capture check of a deployment: its CUDA graphs are planned, and captured where their device is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.facts import deployment_facts
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.config.resolve import resolve
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.plan import graphs_of
from graphkiln.core.graphs.report import GraphReport
from graphkiln.core.graphs.table import dispatch_table
from graphkiln.core.graphs.traffic import served_by
from graphkiln.core.models.source import identify
from graphkiln.core.phases import Phases
from graphkiln.core.plan import make_plan
from graphkiln.core.report import Decision, Progress, Silent

_ANY_CUDA = "cuda"


def check(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    traffic: Mapping[int, float] | None = None,
    progress: Progress | None = None,
) -> GraphReport:
    """Returns the graphs that a start of `deployment` captures, and which of them serves which step.

    `traffic` says how often steps of so many tokens are served. Without its device nothing is captured,
    and the report says why. Raises ModelError, CompileError for a target, ValueError.
    """
    phases = Phases(progress or Silent())
    with phases.phase("plan"):
        target, compilation, decisions = _resolved(deployment, config or CompilationConfig())
        plan = graphs_of(compilation, deployment)
    return GraphReport(
        target=target,
        cudagraphs=compilation.cudagraph_plan(),
        plan=plan,
        dispatch=dispatch_table(plan, deployment.max_num_batched_tokens),
        decisions=decisions,
        phases=phases.rows(),
        why_not=_why_not(compilation, decisions),
        traffic=None
        if traffic is None
        else served_by(traffic, plan.request.sizes if plan.descriptors else ()),
    )


def _resolved(
    deployment: Deployment, config: CompilationConfig
) -> tuple[str, EffectiveConfig, tuple[Decision, ...]]:
    """Returns the target's name, what is in effect for it, and the decisions on the way.

    The question is one about graphs: where no target is named and no GPU is here, they are those of any
    CUDA device.
    """
    asked = deployment.target or deployment.device
    if asked not in (None, _ANY_CUDA) or torch.cuda.is_available():
        plan = make_plan(deployment, config)
        return plan.target.name, plan.compilation, plan.decisions
    source = identify(deployment)
    facts = replace(deployment_facts(deployment, source.config, source.dtype), device="cuda")
    found = resolve(config, facts)
    decisions = found.decisions
    if asked is None:
        reason = "no target was named, and no GPU is here: the graphs are those of any CUDA device"
        decisions = (Decision("target", None, _ANY_CUDA, reason), *decisions)
    return _ANY_CUDA, found.effective, decisions


def _why_not(compilation: EffectiveConfig, decisions: tuple[Decision, ...]) -> str | None:
    """Returns why nothing can be captured, None where it can."""
    if compilation.cudagraph_mode is CUDAGraphMode.NONE:
        reasons = [one.reason for one in decisions if one.field == "cudagraph_mode"]
        return f"there are no graphs: {reasons[-1] if reasons else 'cudagraph_mode is NONE'}"
    if not compilation.capture_sizes:
        return "there are no graphs: no capture size is left"
    if not torch.cuda.is_available():
        return "no CUDA device is here"
    return None
