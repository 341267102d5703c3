"""A deployment with all decided that needs no trace: target, limits, three factors and their lookup."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.env import env_factor, read
from graphkiln.cache.factors.key import Factors
from graphkiln.core.compile.compiler_factor import compiler_factor
from graphkiln.core.compile.torch_options import plain_option
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import Bypass, CompileError
from graphkiln.core.models.source import ModelSource, identify
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.report import Decision
from graphkiln.core.target.cpu import CpuTarget, cpu_target

if TYPE_CHECKING:
    from graphkiln.core.compile.settings import InductorSettings


@dataclass(frozen=True)
class Plan:
    """What a start is about.

    `factors` has no code factor yet; it is None when a factor has no canonical form, and `refusal`
    says which. `largest` is the most tokens of one call.
    """

    deployment: Deployment
    source: ModelSource | None
    config: CompilationConfig
    target: CpuTarget
    factors: Factors | None
    refusal: Bypass | NotCanonical | None
    decisions: tuple[Decision, ...]
    label: str
    dtype: str
    largest: int

    @property
    def lookup(self) -> str | None:
        """What entries are found by, None when this start has no key."""
        return None if self.factors is None else self.factors.lookup

    def with_code(self, code: Mapping[str, Any]) -> Factors:
        """Returns all four factors."""
        assert self.factors is not None
        return Factors(self.factors.env, self.factors.config, code, self.factors.compiler)

    def settings(self, smallest: int, scratch: Path) -> InductorSettings:
        """Returns how a piece of this start is compiled."""
        from graphkiln.core.compile.settings import InductorSettings

        planned = None if self.factors is None else digest(self.factors.compiler["passes"])
        return InductorSettings(
            smallest=smallest,
            largest=self.largest,
            hint=self.largest,
            target=self.target,
            options=self.config.inductor_compile_config,
            scratch=scratch,
            fast_math=bool(read("GRAPHKILN_CPP_FAST_MATH")),
            passes=replace(_pipeline(self.config), planned=planned),
        )

    def requested(self) -> dict[str, Any]:
        """Returns what was asked for, as it was given; the model by its label, never by its path."""
        asked = {**dataclasses.asdict(self.deployment), "model": self.label}
        return {"deployment": asked, "compilation": _asked_compilation(self.config)}

    def effective(self) -> dict[str, Any]:
        """Returns what became of it."""
        return {"compilation": _asked_compilation(self.config) | {"mode": self.config.effective_mode.name}}


def make_plan(deployment: Deployment, config: CompilationConfig) -> Plan:
    """Returns the plan of a deployment. Raises ModelError, and CompileError for a target."""
    source = identify(deployment)
    decisions: list[Decision] = []
    if deployment.dtype != source.dtype:
        decisions.append(Decision("dtype", deployment.dtype, source.dtype, "the dtype of the weights"))
    if deployment.max_model_len != source.max_model_len:
        decisions.append(
            Decision("max_model_len", deployment.max_model_len, source.max_model_len, "the model's own limit")
        )
    model: Mapping[str, Any] = source.config if source.kind != "factory" else {"factory": source.label}
    return _plan(
        deployment, source, config, model, source.label, source.dtype, source.max_model_len, decisions
    )


def plan_for_class(deployment: Deployment, config: CompilationConfig, name: str, dtype: str) -> Plan:
    """Returns the plan for a decorated module that was built by the caller's own code."""
    return _plan(deployment, None, config, {"class": name}, name, dtype, deployment.max_model_len, [])


def _plan(
    deployment: Deployment,
    source: ModelSource | None,
    config: CompilationConfig,
    model: Mapping[str, Any],
    label: str,
    dtype: str,
    max_model_len: int | None,
    decisions: list[Decision],
) -> Plan:
    target = _target(deployment, decisions)
    if config.mode is None:
        reason = f"optimization level {config.optimization_level}"
        decisions.append(Decision("mode", None, config.effective_mode.name, reason))
    try:
        factors, refusal = _factors(deployment, config, model, dtype, max_model_len, target), None
    except (Bypass, NotCanonical) as error:
        factors, refusal = None, error
    largest = deployment.max_num_batched_tokens
    return Plan(deployment, source, config, target, factors, refusal, tuple(decisions), label, dtype, largest)


def _factors(
    deployment: Deployment,
    config: CompilationConfig,
    model: Mapping[str, Any],
    dtype: str,
    max_model_len: int | None,
    target: CpuTarget,
) -> Factors:
    limits = (
        "max_num_batched_tokens", "max_num_seqs", "block_size", "tensor_parallel_size",
        "pipeline_parallel_size", "data_parallel_size", "enable_lora", "num_speculative_tokens",
    )  # fmt: skip
    values = {name: getattr(deployment, name) for name in limits}
    return Factors(
        env=env_factor(),
        config={
            "model": dict(model), "dtype": dtype, "max_model_len": max_model_len, **values,
            "compilation": compilation_values(config),
        },
        code=None,
        compiler=compiler_factor(target, _pipeline(config)),
    )  # fmt: skip


def _asked_compilation(config: CompilationConfig) -> dict[str, Any]:
    mode = None if config.mode is None else config.mode.name
    options = {str(name): str(value) for name, value in config.inductor_compile_config.items()}
    return {
        "optimization_level": config.optimization_level,
        "mode": mode,
        "backend": config.backend,
        "splitting_ops": list(config.effective_splitting_ops),
        "inductor_compile_config": options,
        "pass_config": vars(config.pass_config),
        "inductor_passes": list(config.inductor_passes),
    }


def compilation_values(config: CompilationConfig) -> dict[str, Any]:
    """Returns the effective configuration as far as it can change generated code."""
    return {
        "mode": config.effective_mode.name,
        "backend": config.backend,
        "splitting_ops": list(config.effective_splitting_ops),
        "inductor_compile_config": plain_option("inductor_compile_config", config.inductor_compile_config),
        "pass_config": vars(config.pass_config),
    }


def _pipeline(config: CompilationConfig) -> Pipeline:
    return Pipeline(config.pass_config.on, config.inductor_passes)


def _target(deployment: Deployment, decisions: list[Decision]) -> CpuTarget:
    asked = deployment.target or deployment.device
    if asked is not None and asked != "cpu" and not asked.startswith("cpu:"):
        raise CompileError(
            f"target {asked}", "only CPU targets can be compiled for so far", "use cpu or cpu:ISA"
        )
    target = cpu_target(asked)
    if asked != target.name:
        reason = "the richest instruction set of this CPU" if asked else "no target was named: the CPU here"
        decisions.append(Decision("target", asked, target.name, reason))
    return target
