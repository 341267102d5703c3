"""The configuration in effect on this start: what resolves for a target, as far as it is carried out here.

`resolve` decides as if everything were at hand. What a user may ask for and no start does yet is taken
back here, each with its decision, so that it changes neither code nor key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphkiln.core.config import inductor_options
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.custom_ops import normal_form
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.facts import Device, Facts, deployment_facts
from graphkiln.core.config.modes import CompilationMode
from graphkiln.core.config.passes_config import PassConfig, possible_passes
from graphkiln.core.config.resolve import Resolution, resolve
from graphkiln.core.config.trail import Trail
from graphkiln.core.deployment import Deployment
from graphkiln.core.passes.pipeline import SWITCHED

# The modes whose compiled form is ours: traced once, sealed and kept.
_TRACED = (CompilationMode.DYNAMO_TRACE_ONCE, CompilationMode.VLLM_COMPILE)


def settle(
    deployment: Deployment,
    config: CompilationConfig,
    model_config: Mapping[str, Any],
    dtype: str,
    device: Device = "cpu",
) -> Resolution:
    """Returns what is in effect for a deployment, and every decision on the way there.

    `model_config` is the content of the model's config.json, `device` that of the target. Raises
    ValueError, in one line, for what contradicts itself or cannot be compiled at all; imports no torch.
    """
    facts = deployment_facts(deployment, model_config, dtype, device)
    inductor_options.require_known(config.inductor_compile_config)
    before, after = Trail(), Trail()
    found = resolve(_possible(config, facts, before), facts)
    effective = found.effective
    if effective.mode in _TRACED:
        if facts.max_num_batched_tokens < 2:
            raise ValueError(
                "max_num_batched_tokens: 1 leaves no token count that could vary: use at least 2, or compile "
                "nothing with -O0"
            )
        effective = _without_ours(_partitioned(effective, facts, after), after)
        effective = _without_search(effective, config, after)
    return Resolution(effective, (*before.decisions, *found.decisions, *after.decisions))


def _possible(config: CompilationConfig, facts: Facts, trail: Trail) -> CompilationConfig:
    """Returns what was asked without what nothing here can do."""
    ops, wrap = config.custom_ops, config.ir_enable_torch_wrap
    form = normal_form(ops)
    asked = "any op" if form["base"] == "all" else ", ".join(form["but"])
    if asked:
        ops = ()
        reason = f"there is no kernel for {asked} here: it is compiled from the model's own PyTorch code"
        trail.decide("custom_ops", config.custom_ops, ops, reason)
    if wrap:
        reason = "no op here has several implementations to choose from"
        trail.decide("ir_enable_torch_wrap", True, False, reason)
    partition = config.use_inductor_graph_partition
    if partition and (config.asked_mode is not CompilationMode.VLLM_COMPILE or config.backend != "inductor"):
        reason = "only mode VLLM_COMPILE with the backend inductor has splitting ops to partition at"
        partition = False
        trail.decide("use_inductor_graph_partition", True, partition, reason)
    return replace(
        config,
        custom_ops=ops,
        use_inductor_graph_partition=partition,
        ir_enable_torch_wrap=False,
        pass_config=_written(config.pass_config, facts, trail),
    )


def _written(asked: PassConfig, facts: Facts, trail: Trail) -> PassConfig:
    """Returns the passes without those that are not written; what the target cannot run is told apart."""
    runnable = possible_passes(asked, facts, Trail())
    changes: dict[str, bool] = {}
    for name in (*asked.on, *asked.unset):
        if name not in SWITCHED and getattr(runnable, name) is not False:
            was = bool(getattr(asked, name))
            trail.decide(f"pass_config.{name}", was, False, "no pass here does it yet")
            changes[name] = False
    return replace(asked, **changes)


def _partitioned(effective: EffectiveConfig, facts: Facts, trail: Trail) -> EffectiveConfig:
    """Returns where Inductor partitions: one whole graph is compiled, and none of it is cut by us."""
    if not effective.use_inductor_graph_partition or facts.static_graphs:
        return effective
    reason = "Inductor partitions for CUDA graphs only: on a CPU the whole graph is one piece with attention"
    trail.decide("splitting_ops", effective.splitting_ops, (), reason)
    return replace(effective, splitting_ops=())


def _without_search(effective: EffectiveConfig, config: CompilationConfig, trail: Trail) -> EffectiveConfig:
    """Returns single sizes compiled as any range is: no kernel is timed to compile another."""
    if config.compile_sizes:
        for name, asked in effective.single_size_options.items():
            reason = "no kernel is timed while compiling: the device may not be here"
            trail.decide(f"{inductor_options.FIELD}.{name}", asked, False, reason)
    return replace(effective, single_size_options={})


def _without_ours(effective: EffectiveConfig, trail: Trail) -> EffectiveConfig:
    """Returns the Inductor options without those that a compile sets by itself."""
    options = dict(effective.inductor_compile_config)
    for name, reason in inductor_options.OURS.items():
        if name in options:
            trail.decide(f"{inductor_options.FIELD}.{name}", options.pop(name), None, reason)
    return replace(effective, inductor_compile_config=options)
