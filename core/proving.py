"""The capture check as a step of a start: made before an entry is published, and kept with it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphkiln.cache.store.reports import CAPTURE_REPORT, write_report
from graphkiln.cache.store.store import Store
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.journal import Journal
from graphkiln.core.models.served import ServedModel
from graphkiln.core.plan import Plan
from graphkiln.core.report import StartReport
from graphkiln.core.runner import Runner


class Prover:
    """Captures the graphs of a model once its numbers were checked, where it lies on their device."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._document: Mapping[str, Any] | None = None

    def applies(self, served: ServedModel) -> bool:
        """Whether a model lies where its graphs can be captured, and there are some."""
        compilation = self._plan.compilation
        wanted = compilation.cudagraph_mode is not CUDAGraphMode.NONE and bool(compilation.capture_sizes)
        return wanted and served.device.type == "cuda" and served.weightless is None

    def prove(self, runner: Runner) -> None:
        """Captures, replays and gives back every graph. Raises ReplayDiffers where one is not as eager.

        Too little memory is told and no failure: it says nothing about the code.
        """
        # Here and not above: what captures on a device is nothing that other starts need.
        from graphkiln.core.graphs.proof import prove_graphs

        proof = prove_graphs(runner, self._plan.compilation, self._journal.phases)
        proof.require_equal()
        self._journal.decisions.extend(proof.decisions)
        self._document = proof.document
        if proof.found is not None and proof.found.shortage is not None:
            self._journal.note("not every graph could be captured: see what fits")

    def kept(self, report: StartReport, store: Store | None) -> StartReport:
        """Returns a start's report with that of the capture check, which goes to the entry if it can."""
        if self._document is None:
            return report
        if store is not None and report.entry_path is not None:
            write_report(store.root, report.entry_path, CAPTURE_REPORT, self._document)
        return replace(report, capture=self._document)
