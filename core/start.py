"""What a caller starts: precompile, warm, the key, a model that is ready to serve.

Each returns what it did as a report; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from graphkiln.cache.errors import CacheError
from graphkiln.cache.factors.env import read
from graphkiln.cache.store.root import CacheRoot, resolve_root
from graphkiln.cache.store.store import Store
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice
from graphkiln.core.models.light import describe
from graphkiln.core.models.served import ServedModel
from graphkiln.core.parts import BACKBONE, Context, call_context, find_parts, forward_of
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan, make_plan
from graphkiln.core.proving import Prover
from graphkiln.core.report import KeyReport, Progress, Silent, StartReport
from graphkiln.core.runner import Runner
from graphkiln.core.session import Session
from graphkiln.core.target.described import seen_here
from graphkiln.core.target.elsewhere import call_there, described_elsewhere
from graphkiln.core.trace.decorator import plain_calls
from graphkiln.core.uncached import mode_none, why_uncached

Weights = Literal["load", "none"]


def precompile(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    check: bool = True,
    weights: Weights | None = None,
    store_source: bool = True,
    debug_dump: Path | str | None = None,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> StartReport:
    """Traces, compiles, checks and publishes what a start of `deployment` needs; a hit does none of it.

    `weights` "none", the default without a check, builds the model of shapes alone. For a device that is
    described and not here all this happens in a child process, without weights and without the check.
    `debug_dump` is a folder that gets graphs, guards and generated sources to read, in a new folder inside.
    Raises CheckFailed, and publishes nothing, when compiled and eager disagree; CompileError and
    ModelError for what cannot be compiled; CacheError when the cache cannot be written.
    """
    away = described_elsewhere(deployment)
    if away is not None:
        there: StartReport = call_there(
            away, "precompile", deployment, config, progress=progress, check=check, weights=weights,
            store_source=store_source, debug_dump=debug_dump, cache_root=cache_root,
        )  # fmt: skip
        return there
    if weights == "none" and check and seen_here() is None:
        raise ValueError("weights: none leaves nothing to check with: add --no-check, or load them")
    start = _Start(deployment, config, cache_root, progress, "precompile", must_publish=True)
    chosen = weights or ("load" if check else "none")
    return start.run(check=check, weights=chosen, store_source=store_source, debug_dump=debug_dump)[1]


def warm(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    require_hit: bool = False,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> StartReport:
    """Makes sure that a start would hit, publishing what is missing; `require_hit` compiles nothing.

    A hit is proved by a first call. Raises as `precompile` does, CheckFailed apart.
    """
    away = described_elsewhere(deployment)
    if away is not None:
        there: StartReport = call_there(
            away, "warm", deployment, config, progress=progress, require_hit=require_hit,
            cache_root=cache_root,
        )  # fmt: skip
        return there
    start = _Start(deployment, config, cache_root, progress, "warm", must_publish=True)
    return start.run(compiles=not require_hit, first_call=True)[1]


def load_model(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> Runner:
    """Returns a runner that is ready to serve, from the cache or compiled now.

    On a CUDA device its graphs are captured, and serve the steps of `runner.execute` that they fit. A
    cache that cannot be used makes the start slower and never impossible: `runner.report` says so.
    Raises NoDevice for a target that is described and not here.
    """
    away = described_elsewhere(deployment)
    if away is not None:
        raise NoDevice(
            f"target {away.title}", "it is not here, so that nothing can be served on it", "load it there"
        )
    start = _Start(deployment, config, cache_root, progress, "load_model", must_publish=False)
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
    start = _Start(deployment, config, cache_root, progress, "check", must_publish=False)
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


class _Start:
    """One start of a deployment, from its arguments to a runner and a report."""

    def __init__(
        self,
        deployment: Deployment,
        config: CompilationConfig | None,
        cache_root: Path | str | None,
        progress: Progress | None,
        command: str,
        *,
        must_publish: bool,
    ) -> None:
        self.deployment = deployment
        self.config = config or CompilationConfig()
        self.cache_root = cache_root
        self.command = command
        self.must_publish = must_publish
        self.phases = Phases(progress or Silent())
        self.plan: Plan | None = None

    def run(
        self,
        *,
        check: bool = False,
        weights: Weights = "load",
        store_source: bool = True,
        compiles: bool = True,
        first_call: bool = False,
        debug_dump: Path | str | None = None,
        builds: bool = False,
    ) -> tuple[Runner, StartReport]:
        emulated = seen_here() is not None
        if emulated:
            check, weights, first_call = False, "none", False
        with self.phases.phase("plan"):
            plan = self.plan = make_plan(self.deployment, self.config)
            session = Session(
                plan, self._open_store(), self.phases, command=self.command, store_source=store_source
            )
            if debug_dump is not None:
                from graphkiln.core.compile.dump import DebugDump

                session.dump = DebugDump(Path(debug_dump), plan)
            needs_compiler = plan.compilation.compiles and why_uncached(plan.compilation) is None
            if compiles and needs_compiler and not session.has_candidate():
                session.require_means(must_publish=self.must_publish)
        # A restored model has no eager forward to compare with.
        restores = weights == "load" and plan.compilation.compiles and not builds
        restores = restores and not (check and session.has_unchecked())
        prover = Prover(plan, session.journal)
        found = session.reopen(BACKBONE) if restores else None
        served = found[0] if found is not None else self._built(plan, weights)

        context = call_context(served, self.deployment)
        if not plan.compilation.compiles:
            session.journal.outcome = "bypass"
            report = session.report((mode_none(plan),))
            session.record(report)
            return Runner(served, served.backbone.forward, report, self.deployment), report
        if found is not None:
            forward = found[1]
        else:
            forward = self._opened(plan, session, served, context, check, compiles, prover)
        if first_call and session.journal.outcome == "hit":
            with self.phases.phase("first call"), torch.no_grad(), context(session.journal.smallest):
                forward(*served.example_inputs(session.journal.smallest))
        report = replace(prover.kept(session.report(), session.store), emulated=emulated)
        if session.dump is not None:
            session.dump.decisions(plan, report.decisions, report.key)
            # A hit compiles nothing, so that there is nothing else to show.
            what = "" if report.outcome != "hit" else ": decisions only, nothing was compiled"
            report = replace(report, notes=(*report.notes, f"debug dump in {session.dump.path}{what}"))
        session.record(report)
        return Runner(served, forward, report, self.deployment), report

    def _opened(
        self,
        plan: Plan,
        session: Session,
        served: ServedModel,
        context: Context,
        check: bool,
        compiles: bool,
        prover: Prover,
    ) -> Callable[..., Any]:
        parts = find_parts(served.backbone, self.config, served.example_inputs, plan.example_tokens, context)

        def prove(serve: Sequence[Callable[..., Any]]) -> None:
            prover.prove(Runner(served, forward_of(served.backbone, parts, serve), None, self.deployment))

        serve = session.open(
            parts,
            must_publish=self.must_publish,
            check=context if check else None,
            compiles=compiles,
            describe=lambda: describe(served),
            prove=prove if prover.applies(served) else None,
        )
        return forward_of(served.backbone, parts, serve)

    def _built(self, plan: Plan, weights: Weights) -> ServedModel:
        assert plan.source is not None
        with self.phases.phase("model"):
            # Here and not above: a start that restores its model imports no transformers.
            from graphkiln.core.models.load import build

            device = plan.target.torch_device
            return build(plan.source, self.deployment, weights=weights, device=device)

    def _open_store(self) -> Store | None:
        try:
            return store_for(self.config, self.cache_root)
        except CacheError as error:
            if self.must_publish:
                raise
            self.phases.note(f"{error}: starting without the cache")
            return None


def store_for(config: CompilationConfig, cache_root: Path | str | None) -> Store | None:
    """Returns the store to use, None when GRAPHKILN_DISABLE_COMPILE_CACHE is set."""
    if read("GRAPHKILN_DISABLE_COMPILE_CACHE"):
        return None
    folder = Path(config.cache_dir) if config.cache_dir else None
    return Store(CacheRoot(resolve_root(cache_root)), folder)
