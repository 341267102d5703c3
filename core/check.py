"""The capture check of a deployment: its CUDA graphs are planned, and captured where their device is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from graphkiln.cache.store.reports import CAPTURE_REPORT, REPORTS_FOLDER, write_report
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.config.settle import settle
from graphkiln.core.config.trail import Trail
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.plan import FACTORY_STEPS, GraphPlan, graphs_of
from graphkiln.core.graphs.report import GraphReport
from graphkiln.core.graphs.table import dispatch_table
from graphkiln.core.graphs.traffic import Served, served_by
from graphkiln.core.models.source import ModelSource, identify
from graphkiln.core.phases import Phases
from graphkiln.core.plan import make_plan
from graphkiln.core.report import Decision, Progress, Silent

_ANY_CUDA = "cuda"


def check(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    traffic: Mapping[int, float] | None = None,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> GraphReport:
    """Returns the graphs that a start of `deployment` captures, which of them serves which step, and
    what capturing, replaying and timing all of them showed.

    `traffic` says how often steps of so many tokens are served. Without its device nothing is captured,
    and the report says why; with it the model is loaded as a server loads it. Raises ModelError,
    CompileError for a target and for attention that no graph can hold, ValueError.
    """
    config = config or CompilationConfig()
    phases = Phases(progress or Silent())
    with phases.phase("resolve"):
        target, compilation, decisions, missing = _resolved(deployment, config)
        plan = graphs_of(compilation, deployment)
    none = _why_not(compilation, decisions)
    report = GraphReport(
        target=target,
        cudagraphs=compilation.cudagraph_plan(),
        plan=plan,
        dispatch=dispatch_table(plan, deployment.max_num_batched_tokens),
        decisions=decisions,
        phases=phases.rows(),
        why_not=none or missing,
        absent=none is None and missing is not None,
        refused=none is not None and _refused(config, compilation, decisions),
        traffic=_served(traffic, plan),
    )
    return report if report.why_not else _captured(report, deployment, config, traffic, cache_root, progress)


def _captured(
    report: GraphReport,
    deployment: Deployment,
    config: CompilationConfig,
    traffic: Mapping[int, float] | None,
    cache_root: Path | str | None,
    progress: Progress | None,
) -> GraphReport:
    """Returns the report of a deployment whose device is here, with what its graphs showed."""
    # Here and not above: a plan alone loads no model.
    from graphkiln.core.graphs.proof import prove_graphs
    from graphkiln.core.start import load_built
    from graphkiln.core.starting import store_for

    runner, loaded = load_built(deployment, config, cache_root=cache_root, progress=progress)
    phases = Phases(progress or Silent())
    proof = prove_graphs(runner, loaded.compilation, phases, traffic=traffic)
    start = runner.report
    assert start is not None
    store, kept, notes = store_for(config, cache_root), None, start.notes
    if proof.document is not None and store is not None and start.entry_path is not None:
        if write_report(store.root, start.entry_path, CAPTURE_REPORT, proof.document):
            kept = start.entry_path / REPORTS_FOLDER / CAPTURE_REPORT
        else:
            notes = (*notes, "the report was not kept: the entry cannot be written")
    return replace(
        report,
        cudagraphs=proof.compilation.cudagraph_plan(),
        plan=proof.plan,
        dispatch=dispatch_table(proof.plan, deployment.max_num_batched_tokens),
        decisions=(*start.decisions, *proof.decisions),
        phases=(*report.phases, *start.phases, *phases.rows()),
        start=start,
        capture=proof.document,
        why_not=None if proof.document else _why_not(proof.compilation, proof.decisions),
        refused=proof.document is None,
        traffic=_served(traffic, proof.plan),
        kept=kept,
        notes=notes,
    )


def _served(traffic: Mapping[int, float] | None, plan: GraphPlan) -> Served | None:
    sizes = plan.request.sizes if plan.descriptors else ()
    return None if traffic is None else served_by(traffic, sizes)


def _resolved(
    deployment: Deployment, config: CompilationConfig
) -> tuple[str, EffectiveConfig, tuple[Decision, ...], str | None]:
    """Returns the target's name, what is in effect for it, the decisions on the way, and what is not here.

    The question is one about graphs: where no target is named and no GPU is here, they are those of any
    CUDA device.
    """
    asked = deployment.target or deployment.device
    if asked not in (None, _ANY_CUDA) or torch.cuda.is_available():
        plan = make_plan(deployment, config)
        missing = ", ".join(plan.target.missing_here())
        lacks = f"this machine is not {plan.target.name}: it needs {missing}" if missing else None
        return plan.target.name, *_of_kind(plan.source, plan.compilation, plan.decisions), lacks
    source = identify(deployment)
    found = settle(deployment, config, source.config, source.dtype, "cuda")
    decisions = found.decisions
    if asked is None:
        reason = "no target was named, and no GPU is here: the graphs are those of any CUDA device"
        decisions = (Decision("target", None, _ANY_CUDA, reason), *decisions)
    return _ANY_CUDA, *_of_kind(source, found.effective, decisions), "no CUDA device is here"


def _of_kind(
    source: ModelSource | None, compilation: EffectiveConfig, decisions: tuple[Decision, ...]
) -> tuple[EffectiveConfig, tuple[Decision, ...]]:
    """Returns what is in effect for a kind of model, before any of it is loaded."""
    if source is None or source.kind != "factory":
        return compilation, decisions
    trail = Trail()
    mode = trail.decide_mode(compilation.cudagraph_mode, CUDAGraphMode.NONE, FACTORY_STEPS)
    return replace(compilation, cudagraph_mode=mode), (*decisions, *trail.decisions)


def _why_not(compilation: EffectiveConfig, decisions: tuple[Decision, ...]) -> str | None:
    """Returns why nothing can be captured, None where it can."""
    if compilation.cudagraph_mode is CUDAGraphMode.NONE:
        reasons = [one.reason for one in decisions if one.field == "cudagraph_mode"]
        return f"there are no graphs: {reasons[-1] if reasons else 'cudagraph_mode is NONE'}"
    if not compilation.capture_sizes:
        return "there are no graphs: no capture size is left"
    return None


def _refused(
    config: CompilationConfig, compilation: EffectiveConfig, decisions: tuple[Decision, ...]
) -> bool:
    """Returns whether a deployment without graphs asked for some, or has a model without steps."""
    if compilation.cudagraph_mode is not CUDAGraphMode.NONE:
        return True
    asked = config.cudagraph_mode not in (None, CUDAGraphMode.NONE)
    return asked or any(one.reason == FACTORY_STEPS for one in decisions)
