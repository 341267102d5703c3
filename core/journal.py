"""What one start has done so far, for its report, the ledger and the header of an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.env import read
from graphkiln.cache.store.entries import Entry
from graphkiln.core import evidence
from graphkiln.core.errors import Bypass
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.report import CheckReport, Decision, Outcome, PieceCounts, StartReport


class Journal:
    """Facts of a start as they come in. `smallest` is the least token count that all parts serve."""

    def __init__(self, plan: Plan, phases: Phases) -> None:
        self.plan = plan
        self.phases = phases
        self.outcome: Outcome = "miss"
        self.smallest = 1
        self.entry: Entry | None = None
        self.key: str | None = None
        self.reasons: list[Difference] = []
        self.decisions: list[Decision] = list(plan.decisions)
        self.check: CheckReport | None = None
        self.pieces = PieceCounts()
        self.counts = {"kernels_compiled": 0, "artifacts_loaded": 0}
        self.passes: tuple[Mapping[str, Any], ...] = ()
        self.notes: list[str] = []
        # The AOT file that serves this start, and the seconds that compiling what serves it took.
        self.aot: Path | None = None
        self.compiled_phases: Sequence[tuple[str, float]] = ()
        self._began = evidence.begin()

    def note(self, text: str) -> None:
        """Tells the user something that is not an error, now and in the report."""
        self.notes.append(text)
        self.phases.note(text)

    def refuse(self, reason: Difference) -> None:
        """Keeps why something that lies in the cache is not used, and tells it."""
        self.reasons.append(reason)
        self.note(f"{reason.name}: {reason.now}")

    def report(self, reasons: Sequence[Difference] = ()) -> StartReport:
        """Returns what this start did so far."""
        entry = self.entry
        return StartReport(
            outcome=self.outcome,
            key=self.key,
            lookup=self.plan.lookup,
            target=self.plan.target.name,
            entry_path=None if entry is None else entry.path,
            phases=self.phases.rows(),
            pieces=self.pieces,
            entry_bytes=0 if entry is None else entry.total_bytes,
            decisions=tuple(self.decisions),
            effective=self.plan.effective(),
            reasons=_each_once((*self.reasons, *reasons)),
            check=self.check,
            counts={**self._began.since(), **self.counts},
            notes=tuple(self.notes),
            passes=self.passes,
            compiled_seconds=sum(seconds for _, seconds in self._compiled_phases()) or None,
            aot=self.aot,
        )

    def _compiled_phases(self) -> Sequence[tuple[str, float]]:
        return self.entry.header["phases"] if self.entry is not None else self.compiled_phases


def _each_once(reasons: Sequence[Difference]) -> tuple[Difference, ...]:
    """Returns the reasons in their order; an entry and its AOT file are refused for the same ones."""
    return tuple(reason for place, reason in enumerate(reasons) if reason not in reasons[:place])


def bypass_difference(refusal: Bypass | NotCanonical) -> Difference:
    """Returns a refusal to be keyed as the reason of a start."""
    if isinstance(refusal, Bypass):
        return Difference(refusal.factor, "not cacheable", None, refusal.reason, kind="cannot verify")
    factor, _, what = refusal.where.partition(".")
    return Difference(factor, "not cacheable", None, f"{what}: {refusal.reason}", kind="cannot verify")


def why_bypass(plan: Plan) -> Difference:
    """Returns why a start of this plan can use no cache."""
    if plan.refusal is not None:
        return bypass_difference(plan.refusal)
    name = "GRAPHKILN_DISABLE_COMPILE_CACHE"
    if read(name):
        return Difference("env", name, "0", "1", relevant=False, remedy=f"unset {name}")
    return Difference("env", "cache root", "usable", "not usable", relevant=False, remedy="see the notes")
