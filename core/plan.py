"""A deployment with all decided that needs no trace: target, limits, three factors and their lookup."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.env import env_factor, read
from graphkiln.cache.factors.key import Factors
from graphkiln.core.choices import Choices
from graphkiln.core.compile.compiler_factor import compiler_factor
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import DynamicShapesType
from graphkiln.core.config.ranges import CompileRange
from graphkiln.core.config.settle import settle
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import Bypass
from graphkiln.core.models.experts import TRACEABLE
from graphkiln.core.models.source import ModelSource, identify
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.report import Decision
from graphkiln.core.target.description import is_description
from graphkiln.core.target.named import Target, find_target

if TYPE_CHECKING:
    from graphkiln.core.compile.dump import PartDump
    from graphkiln.core.compile.settings import InductorSettings


_KINDS = {"cpu": "CPU", "cuda": "CUDA device"}


@dataclass(frozen=True)
class Plan:
    """What a start is about.

    `config` is what was asked, `compilation` what is in effect. `factors` has no code factor yet; it
    is None when a factor has no canonical form, and `refusal` says which. `largest` is the most
    tokens of one call. `choices` are those between configurations of kernels that were made before: the key
    does not hold them, the build does.
    """

    deployment: Deployment
    source: ModelSource | None
    config: CompilationConfig
    compilation: EffectiveConfig
    target: Target
    factors: Factors | None
    refusal: Bypass | NotCanonical | None
    decisions: tuple[Decision, ...]
    label: str
    dtype: str
    largest: int
    choices: Choices | None = None

    @property
    def lookup(self) -> str | None:
        """What entries are found by, None when this start has no key."""
        return None if self.factors is None else self.factors.lookup

    def with_code(self, code: Mapping[str, Any]) -> Factors:
        """Returns all four factors."""
        assert self.factors is not None
        return Factors(self.factors.env, self.factors.config, code, self.factors.compiler)

    @property
    def example_tokens(self) -> int:
        """The token count that models are looked at with: odd, prime, above what models tend to branch on."""
        return min(13, self.largest)

    @property
    def pipeline(self) -> Pipeline:
        """The passes that run over every piece, held to the sources that the key was made of."""
        planned = None if self.factors is None else digest(self.factors.compiler["passes"])
        return Pipeline(self.compilation.passes.on, self.config.inductor_passes, planned)

    def ranges(self, smallest: int, encoder: bool = False) -> tuple[CompileRange, ...]:
        """Returns what is compiled apart, single sizes first; no token count below `smallest`.

        The last range of an encoder is open.
        """
        ranges = self.compilation.ranges
        found = (ranges.for_encoder() if encoder else ranges).in_compile_order
        return tuple(CompileRange(max(one.start, smallest), one.end) for one in found if one.end >= smallest)

    def settings(
        self, smallest: int, scratch: Path, dump: PartDump | None = None, encoder: bool = False
    ) -> tuple[InductorSettings, ...]:
        """Returns how a piece of this start is compiled for each of `ranges`."""
        from graphkiln.core.compile.settings import InductorSettings

        return tuple(
            InductorSettings(
                smallest=found.start,
                largest=found.end,
                hint=min(found.end, self.largest),
                target=self.target,
                options=self._inductor_options(found),
                scratch=scratch,
                fast_math=bool(read("GRAPHKILN_CPP_FAST_MATH")),
                unbacked=self.compilation.dynamic_shapes.type is DynamicShapesType.UNBACKED,
                passes=self.pipeline,
                partition_ops=self.compilation.partition_ops,
                dump=dump,
                choices=self.choices,
            )
            for found in self.ranges(smallest, encoder)
        )

    def _inductor_options(self, found: CompileRange) -> dict[str, Any]:
        options = self.compilation.inductor_options(found)
        if self.compilation.dynamic_shapes.assume_32_bit_indexing:
            options.setdefault("assume_32bit_indexing", True)
        return options

    def requested(self) -> dict[str, Any]:
        """Returns what was asked for, as it was given; a model by its label, a file by its name, no path."""
        asked = {**dataclasses.asdict(self.deployment), "model": self.label}
        asked["target"] = _without_place(self.deployment.target)
        return {"deployment": asked, "compilation": self.config.as_asked()}

    def effective(self) -> dict[str, Any]:
        """Returns what became of it."""
        return {"compilation": self.compilation.as_json()}


def make_plan(deployment: Deployment, config: CompilationConfig) -> Plan:
    """Returns the plan of a deployment. Raises ModelError, BadTarget, ValueError."""
    source = identify(deployment)
    decisions: list[Decision] = []
    if deployment.dtype != source.dtype:
        decisions.append(Decision("dtype", deployment.dtype, source.dtype, "the dtype of the weights"))
    if deployment.max_model_len != source.max_model_len:
        decisions.append(
            Decision("max_model_len", deployment.max_model_len, source.max_model_len, "the model's own limit")
        )
    if source.kind == "hub" and source.path is not None:
        reason = "the commit in the cache of huggingface_hub"
        decisions.append(Decision("model", deployment.model, source.path.name, reason))
    if source.architecture is not None and source.architecture.experts:
        reason = "can be traced whole; copies the weights of the experts that each token chose"
        decisions.append(Decision("experts", None, TRACEABLE, reason))
    model: Mapping[str, Any] = source.config if source.kind != "factory" else {"factory": source.label}
    return _plan(
        deployment, source, config, model, source.label, source.dtype, source.max_model_len, decisions
    )


def plan_for_class(
    deployment: Deployment, config: CompilationConfig, name: str, dtype: str, device: str
) -> Plan:
    """Returns the plan for a decorated module that was built by the caller's own code, on `device`."""
    limit = deployment.max_model_len
    return _plan(deployment, None, config, {"class": name}, name, dtype, limit, [], device)


def _plan(
    deployment: Deployment,
    source: ModelSource | None,
    config: CompilationConfig,
    model: Mapping[str, Any],
    label: str,
    dtype: str,
    max_model_len: int | None,
    decisions: list[Decision],
    device: str | None = None,
) -> Plan:
    target = _target(deployment, decisions, device)
    known = {} if source is None else source.config
    resolution = settle(deployment, config, known, dtype, target.kind)
    compilation = resolution.effective
    decisions.extend(resolution.decisions)
    try:
        factors, refusal = (
            _factors(deployment, compilation, model, dtype, max_model_len, target, config.inductor_passes),
            None,
        )
    except (Bypass, NotCanonical) as error:
        factors, refusal = None, error
    return Plan(
        deployment=deployment,
        source=source,
        config=config,
        compilation=compilation,
        target=target,
        factors=factors,
        refusal=refusal,
        decisions=tuple(decisions),
        label=label,
        dtype=dtype,
        largest=deployment.max_num_batched_tokens,
    )


def _factors(
    deployment: Deployment,
    compilation: EffectiveConfig,
    model: Mapping[str, Any],
    dtype: str,
    max_model_len: int | None,
    target: Target,
    user_passes: tuple[str, ...],
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
            "compilation": compilation.code_values(),
        },
        code=None,
        compiler=compiler_factor(target, Pipeline(compilation.passes.on, user_passes)),
    )  # fmt: skip


def _target(deployment: Deployment, decisions: list[Decision], device: str | None) -> Target:
    asked = deployment.target or deployment.device
    target = find_target(asked or device)
    if asked != target.name:
        if asked is None:
            reason = f"no target was named: the {_KINDS[target.kind]} here"
        elif is_description(asked):
            reason = "the description in that file"
        else:
            reason = "the richest instruction set of this CPU"
        decisions.append(Decision("target", _without_place(asked), target.name, reason))
    return target


def _without_place(target: str | None) -> str | None:
    """Returns a target as it is stored: an entry that held a description's path would be of one machine."""
    return Path(target).name if target is not None and is_description(target) else target
