"""One start of a deployment, from its arguments to a runner and a report."""

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
from graphkiln.core.aot_use import AotUse
from graphkiln.core.attending import Attending
from graphkiln.core.choices import Choices
from graphkiln.core.collector import collector_paused
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.light import describe
from graphkiln.core.models.served import ServedModel
from graphkiln.core.parts import BACKBONE, Context, call_context, find_parts, forward_of
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan, make_plan
from graphkiln.core.proving import Prover
from graphkiln.core.publication import tool_versions
from graphkiln.core.report import Progress, Silent, StartReport
from graphkiln.core.runner import Runner
from graphkiln.core.session import Session
from graphkiln.core.target.described import seen_here
from graphkiln.core.target.required import route
from graphkiln.core.uncached import mode_none, why_uncached

Weights = Literal["load", "none"]


class Start:
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
        aot: AotUse,
        choices: Choices | None = None,
    ) -> None:
        self.deployment = deployment
        self.config = config or CompilationConfig()
        self.cache_root = cache_root
        self.command = command
        self.must_publish = must_publish
        self.aot = aot
        self.choices = choices
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
        described = seen_here()
        emulated = described is not None
        if emulated:
            check, weights, first_call = False, "none", False
        with collector_paused(), self.phases.phase("plan"):
            plan = self.plan = self._planned()
            session = Session(
                plan, self._open_store(), self.phases, command=self.command, store_source=store_source,
                aot=self.aot,
            )  # fmt: skip
            if debug_dump is not None:
                from graphkiln.core.compile.dump import DebugDump

                session.dump = DebugDump(Path(debug_dump), plan)
            session.demand()
            needs_compiler = plan.compilation.compiles and why_uncached(plan.compilation) is None
            if compiles and needs_compiler and not session.has_candidate():
                session.require_means(must_publish=self.must_publish)
        # A restored model has no eager forward to compare with.
        restores = weights == "load" and plan.compilation.compiles and not builds
        restores = restores and not (check and session.has_unchecked())
        prover = Prover(plan, session.journal)
        with collector_paused():
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
        if emulated and session.journal.outcome == "hit":
            self._rehearsed(served, forward, session)
        session.settle_aot()
        report = replace(prover.kept(session.report(), session.store), emulated=emulated)
        if described is not None and report.outcome == "compiled":
            report = replace(report, notes=(*report.notes, route(described)))
        if session.dump is not None:
            session.dump.decisions(plan, report.decisions, report.key)
            # A hit compiles nothing, so that there is nothing else to show.
            what = "" if report.outcome != "hit" else ": decisions only, nothing was compiled"
            report = replace(report, notes=(*report.notes, f"debug dump in {session.dump.path}{what}"))
        session.record(report)
        return Runner(served, forward, report, self.deployment), report

    def _planned(self) -> Plan:
        """Returns the plan of this start. Raises BadChoices for choices that were made for something else."""
        plan = make_plan(self.deployment, self.config)
        if self.choices is not None:
            self.choices.require_target(plan.target.as_factor(), tool_versions())
        return replace(plan, choices=self.choices)

    def _rehearsed(self, served: ServedModel, forward: Callable[..., Any], session: Session) -> None:
        """Goes through the steps of a server, and notes what they came to. Raises where one lacks code."""
        # Here and not above: a start on the device runs its steps.
        from graphkiln.core.graphs.model_graphs import compiled_parts
        from graphkiln.core.rehearsal import rehearse

        with self.phases.phase("rehearse"):
            found = rehearse(served, compiled_parts(forward), self.deployment)
        if found.launches:
            kinds = f"{found.launches} launches of attention in {found.steps} kinds of step"
            session.journal.note(f"{kinds} found their code in the entry")

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
            attending=Attending(served, self.deployment, plan.target),
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
