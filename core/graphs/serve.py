"""The graphs of a model that is to serve: captured before its first step, all of them or none."""

from __future__ import annotations

from dataclasses import replace

from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.graphs.capture import open_capturer
from graphkiln.core.graphs.capturer import Capturer
from graphkiln.core.graphs.examine import CaptureSet, capture_all
from graphkiln.core.graphs.memory import shortage
from graphkiln.core.graphs.plan import GraphPlan
from graphkiln.core.graphs.proof import possible_plan
from graphkiln.core.phases import Phases
from graphkiln.core.runner import Runner


def serve_graphs(
    runner: Runner, compilation: EffectiveConfig, phases: Phases, capturer: Capturer | None = None
) -> None:
    """Captures the graphs of a configuration and lets the runner's steps be served by them.

    Without memory for all of them there are none: its report says so, and which sizes fit. Raises
    CompileError where attention cannot be in a graph that was asked for.
    """
    compilation, plan, decisions = possible_plan(runner, compilation)
    notes: tuple[str, ...] = ()
    if plan.descriptors:
        with phases.phase("graphs"):
            capturer = capturer or open_capturer(runner, breakable=compilation.breakable)
            found = capture_all(capturer, plan.descriptors, phases.progress)
        if found.failure is None:
            assert runner.graphs is not None
            runner.graphs.serve(plan.descriptors, plan.lora_cases)
        else:
            notes = (_without(plan, found),)
    if runner.report is not None:
        runner.report = replace(
            runner.report,
            phases=phases.rows(),
            decisions=(*runner.report.decisions, *decisions),
            notes=(*runner.report.notes, *notes),
        )


def _without(plan: GraphPlan, found: CaptureSet) -> str:
    assert found.failure is not None
    lack = shortage(plan, found.failure, found.captured, ())
    sizes = ",".join(map(str, lack.sizes)) or "none"
    return f"steps run without CUDA graphs: {found.failure}; sizes that fit: {sizes}"
