"""What a caller starts: precompile, warm, the key, a model that is ready to serve.

Each returns what it did as a report; nothing here prints.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from graphkiln.core.aot_use import aot_use
from graphkiln.core.choices import Choices
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice
from graphkiln.core.parts import call_context, find_parts
from graphkiln.core.plan import Plan, make_plan
from graphkiln.core.report import KeyReport, Progress, StartReport
from graphkiln.core.runner import Runner
from graphkiln.core.starting import Start, Weights
from graphkiln.core.target.cuda import CudaTarget
from graphkiln.core.target.described import seen_here
from graphkiln.core.target.elsewhere import call_there, described_elsewhere
from graphkiln.core.trace.decorator import plain_calls


def precompile(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    check: bool = True,
    weights: Weights | None = None,
    store_source: bool = True,
    self_contained: bool = False,
    debug_dump: Path | str | None = None,
    choices: Choices | None = None,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> StartReport:
    """Traces, compiles, checks and publishes what a start of `deployment` needs; a hit does none of it.

    `weights` "none", the default without a check, builds the model of shapes alone. For a device that is
    described and not here all this happens in a child process, without weights and without the check.
    `self_contained` puts everything into the AOT file (`report.aot`), so that it can be shipped alone.
    `choices` name the one configuration that kernels are built with; an entry that was built otherwise is set
    aside. `debug_dump` is a folder that gets graphs, guards and generated sources to read, in a new folder
    inside.
    Raises CheckFailed, and publishes nothing, when compiled and eager disagree; CompileError and
    ModelError for what cannot be compiled; CacheError when the cache cannot be written.
    """
    away = described_elsewhere(deployment)
    if away is not None:
        there: StartReport = call_there(
            away, "precompile", deployment, config, progress=progress, check=check, weights=weights,
            store_source=store_source, self_contained=self_contained, debug_dump=debug_dump,
            cache_root=cache_root, choices=choices,
        )  # fmt: skip
        if weights == "load":
            ignored = f"weights: none were loaded, {away.title} is not here to check anything with them"
            there = replace(there, notes=(*there.notes, ignored))
        return there
    if weights == "none" and check and seen_here() is None:
        raise ValueError("weights: none leaves nothing to check with: add --no-check, or load them")
    aot = aot_use(contained=self_contained)
    start = Start(
        deployment, config, cache_root, progress, "precompile", must_publish=True, aot=aot, choices=choices
    )
    chosen = weights or ("load" if check else "none")
    return start.run(check=check, weights=chosen, store_source=store_source, debug_dump=debug_dump)[1]


def warm(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    require_hit: bool = False,
    aot: Path | str | None = None,
    force_aot_load: bool = False,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> StartReport:
    """Makes sure that a start would hit, publishing what is missing; `require_hit` compiles nothing.

    A hit is proved by a first call. `aot` and `force_aot_load` as in `load_model`. Raises as `precompile`
    does, CheckFailed apart.
    """
    away = described_elsewhere(deployment)
    if away is not None:
        there: StartReport = call_there(
            away, "warm", deployment, config, progress=progress, require_hit=require_hit,
            aot=aot, force_aot_load=force_aot_load, cache_root=cache_root,
        )  # fmt: skip
        return there
    use = aot_use(path=aot, force=force_aot_load)
    start = Start(deployment, config, cache_root, progress, "warm", must_publish=True, aot=use)
    return start.run(compiles=not require_hit, first_call=True)[1]


def load_model(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    aot: Path | str | None = None,
    force_aot_load: bool = False,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> Runner:
    """Returns a runner that is ready to serve, from the cache or compiled now.

    `aot` is an AOT file to open before the cache is asked. A cache or a file that cannot be used makes
    the start slower and never impossible, and `runner.report` says so; with `force_aot_load` it raises
    AotRefused instead. On a CUDA device its graphs are captured, and serve the steps of
    `runner.execute` that they fit. Raises NoDevice for a target that is described and not here.
    """
    away = described_elsewhere(deployment)
    if away is not None:
        found = ", ".join(CudaTarget(away.device, away.versions.cuda, away.title).missing_here())
        raise NoDevice(
            f"target {away.title}",
            f"it is not here, so that nothing can be served on it: it needs {found}",
            "load it there",
        )
    use = aot_use(path=aot, force=force_aot_load)
    start = Start(deployment, config, cache_root, progress, "load_model", must_publish=False, aot=use)
    runner, _ = start.run()
    if runner.served.device.type == "cuda":
        from graphkiln.core.graphs.serve import serve_graphs

        assert start.plan is not None
        serve_graphs(runner, start.plan.compilation, start.phases)
    return runner


def load_built(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> tuple[Runner, Plan]:
    """Returns what `load_model` does, of a model that can run eagerly too, and the plan it was loaded by."""
    start = Start(deployment, config, cache_root, progress, "check", must_publish=False, aot=aot_use())
    runner, _ = start.run(builds=True)
    assert start.plan is not None
    return runner, start.plan


def key(deployment: Deployment, config: CompilationConfig | None = None, *, trace: bool = True) -> KeyReport:
    """Returns the key of a deployment, traced and not compiled; without `trace` its lookup alone.

    Raises Bypass when a factor has no canonical form.
    """
    away = described_elsewhere(deployment) if trace else None
    if away is not None:
        there: KeyReport = call_there(away, "key", deployment, config)
        return there
    plan = make_plan(deployment, config or CompilationConfig())
    if plan.factors is None:
        assert plan.refusal is not None
        raise plan.refusal
    factors, decisions = plan.factors, plan.decisions
    if trace:
        from graphkiln.core.models.load import build
        from graphkiln.core.tracing import trace_part

        assert plan.source is not None
        served = build(plan.source, deployment, weights="none", device=plan.target.torch_device)
        context = call_context(served, deployment)
        parts = find_parts(served.backbone, plan.config, served.example_inputs, plan.example_tokens, context)
        with plain_calls():
            traced = {part.prefix: trace_part(part, plan) for part in parts}
        factors = plan.with_code({prefix: one.code.factor for prefix, one in traced.items()})
        decisions = (*decisions, *(found for one in traced.values() for found in one.decisions))
    return KeyReport(
        key=factors.key if trace else None,
        lookup=factors.lookup,
        hashes=factors.hashes,
        factors=factors.as_json(),
        decisions=decisions,
        target=plan.target.name,
        effective=plan.effective(),
    )
