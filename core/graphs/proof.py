"""The capture check of a loaded model: what `check` does, and `precompile` before it publishes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.config.trail import Trail
from graphkiln.core.graphs.capture import open_capturer
from graphkiln.core.graphs.capturer import Capturer
from graphkiln.core.graphs.errors import ReplayDiffers
from graphkiln.core.graphs.examine import Examination, examine
from graphkiln.core.graphs.lowering import CacheLayout, lowered_plan
from graphkiln.core.graphs.model_graphs import compiled_parts
from graphkiln.core.graphs.plan import FACTORY_STEPS, GraphPlan, graphs_of
from graphkiln.core.graphs.report import capture_document
from graphkiln.core.phases import Phases
from graphkiln.core.report import Decision
from graphkiln.core.runner import Runner


@dataclass(frozen=True)
class Proof:
    """A capture check that ran: the graphs as attention left them, and what was found.

    `document` is the report as it is kept; None where attention left no graph.
    """

    compilation: EffectiveConfig
    plan: GraphPlan
    decisions: tuple[Decision, ...]
    document: Mapping[str, Any] | None
    found: Examination | None = None

    def require_equal(self) -> None:
        """Raises ReplayDiffers for the replay that is farthest from eager, if any is too far."""
        unequal = [one for one in self.found.replayed if not one.ok] if self.found is not None else []
        if unequal:
            # A NaN is larger than nothing, and worse than all.
            worst = max(
                unequal, key=lambda one: math.inf if math.isnan(one.max_abs_error) else one.max_abs_error
            )
            graph = worst.descriptor
            raise ReplayDiffers(graph.num_tokens, worst.max_abs_error, worst.tolerance, graph.mode.name)


def prove_graphs(
    runner: Runner,
    compilation: EffectiveConfig,
    phases: Phases,
    *,
    traffic: Mapping[int, float] | None = None,
    capturer: Capturer | None = None,
) -> Proof:
    """Returns what capturing every graph of a loaded model showed; the runner has no graphs afterwards.

    Raises CompileError where attention cannot be in a graph that was asked for.
    """
    compilation, plan, decisions = possible_plan(runner, compilation)
    if not plan.descriptors:
        return Proof(compilation, plan, decisions, None)
    with phases.phase("prepare"):
        capturer = capturer or open_capturer(runner, breakable=compilation.breakable)
    found = examine(
        capturer,
        plan,
        compiled=compilation.compiles,
        phases=phases,
        traffic=traffic,
    )
    at = datetime.now(UTC).isoformat(timespec="seconds")
    document = capture_document(found, plan, at=at, device=_device_name(runner.served.device))
    return Proof(compilation, plan, decisions, document, found)


def possible_plan(
    runner: Runner, compilation: EffectiveConfig
) -> tuple[EffectiveConfig, GraphPlan, tuple[Decision, ...]]:
    """Returns the configuration that a loaded model leaves possible, its graphs, and the decisions made.

    Raises CompileError where attention cannot be in a graph that was asked for.
    """
    served, deployment = runner.served, runner.deployment
    if served.vocab_size is None:
        trail = Trail()
        mode = trail.decide_mode(compilation.cudagraph_mode, CUDAGraphMode.NONE, FACTORY_STEPS)
        compilation = replace(compilation, cudagraph_mode=mode)
        return compilation, graphs_of(compilation, deployment), trail.decisions
    layout = CacheLayout(
        backends={runner.backend.name: runner.backend.support} if served.layers else {},
        decode_length=1 + deployment.num_speculative_tokens,
        max_num_seqs=deployment.max_num_seqs,
        has_pieces=bool(compiled_parts(runner.plain_forward)),
    )
    return lowered_plan(compilation, deployment, layout)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
