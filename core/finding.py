"""Looking for compiled parts that this start may use: every check of them, and what becomes of a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from graphkiln.cache.errors import EntryDamaged, RootUnusable
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Broken, Store
from graphkiln.core.aot_use import AotUse
from graphkiln.core.attending import Attending
from graphkiln.core.candidates import Candidate, Candidates, told
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.errors import AotRefused, LoadRefused, PieceRefused
from graphkiln.core.first_call import tried
from graphkiln.core.journal import Journal
from graphkiln.core.loading import (
    differences,
    load_stored_attention,
    load_stored_part,
    recorded_code,
    restored,
)
from graphkiln.core.mending import Mending, note_refusal
from graphkiln.core.models.served import ServedModel
from graphkiln.core.other_targets import other_target
from graphkiln.core.part import Part
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.report import PieceCounts
from graphkiln.core.stored import RANK, AotStored, EntryStored

# A part's code factor and the digests of its source files.
Code = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Found:
    """Parts that passed every check, ready to be called, in the order of the parts.

    `serve` are on trial until their first calls came back; `parts` are what they call. `checked` says
    whether they were ever compared with eager.
    """

    short: str
    checked: bool
    parts: list[CompiledPart]
    serve: list[Callable[..., Any]]
    codes: list[Code]


class Finder:
    """Candidates held against one start; what it finds out goes into the journal.

    `mending` is what the last failed search left: pieces that are sound in an entry where others are not.
    """

    def __init__(
        self, plan: Plan, store: Store | None, phases: Phases, journal: Journal, command: str, use: AotUse
    ) -> None:
        self.plan = plan
        self.store = store
        self.phases = phases
        self.journal = journal
        self.command = command
        self.use = use
        self.candidates = Candidates(plan, store, journal, use, command)
        self.mending: Mending | None = None

    def has_candidate(self) -> bool:
        """Whether there is something that might be used. Raises RootUnusable."""
        return bool(self.candidates.files() or self.candidates.entries())

    def find(self, parts: Sequence[Part], attending: Attending | None) -> Found | None:
        """Returns the first candidate that was compiled for these very parts, None where there is none.

        Attention kernels beside it go to `attending`. Raises AotRefused where an AOT file was demanded and
        none can be used.
        """
        modules = {part.prefix: part.module for part in parts}
        settled: set[str] = set()
        for candidate in self.candidates:
            if candidate.key in settled:
                continue
            try:
                with self.phases.phase("verify"):
                    # Read and digested by other threads while the guards are looked at.
                    fetch = candidate.fetch
                    found = differences(candidate.stored, modules, parts[0].layers)
                    broken = {} if found else fetch.broken()
                if found:
                    self.journal.reasons.extend(found)
                    settled.add(candidate.key)
                    continue
                if broken:
                    self._mend(candidate, {name: str(damage) for name, damage in broken.items()})
                    settled.add(candidate.key)
                    continue
                with self.phases.phase("load"):
                    loaded = [
                        load_stored_part(candidate.stored, fetch, part.prefix, part.module, self.plan.target)
                        for part in parts
                    ]
                    if attending is not None:
                        load_stored_attention(candidate.stored, fetch, [*modules], attending)
            except EntryDamaged as damage:
                self._damaged(candidate, damage)
                continue
            except LoadRefused as refusal:
                self._refused(candidate, refusal)
                settled.add(candidate.key)
                continue
            if attending is not None and attending.left_out:
                self.journal.note(attending.left_out)
            codes = [recorded_code(candidate.stored, part.prefix) for part in parts]
            return self._took(candidate, loaded, codes)
        # Of what is to be mended, the sound pieces are still asked for.
        self.candidates.release(None if self.mending is None else self.mending.stored)
        self.demand()
        return None

    def reopen(self, prefix: str) -> tuple[ServedModel, Callable[..., Any]] | None:
        """Returns a model and its compiled part from what knows how to do without building the model.

        None is no news: the model is built then, and `find` finds out and says what is different.
        """
        source = self.plan.source
        if source is None:
            return None
        try:
            for candidate in self.candidates:
                try:
                    found = self._reopened(candidate, prefix)
                except (EntryDamaged, LoadRefused) as error:
                    self.phases.note(f"the model is built: {error}")
                    continue
                if found is not None:
                    return found
        except RootUnusable as error:
            self.phases.note(f"the model is built: {error}")
        return None

    def _reopened(self, candidate: Candidate, prefix: str) -> tuple[ServedModel, Callable[..., Any]] | None:
        assert self.plan.source is not None
        with self.phases.phase("model"):
            fetch, device = candidate.fetch, self.plan.target.torch_device
            served, why = restored(candidate.stored, prefix, self.plan.source, self.plan.deployment, device)
        if served is None:
            self.phases.note(f"the model is built: {why}")
            return None
        with self.phases.phase("load"):
            target = self.plan.target
            loaded = load_stored_part(candidate.stored, fetch, prefix, served.backbone, target)
            attending = Attending(served, self.plan.deployment, target)
            load_stored_attention(candidate.stored, fetch, [prefix], attending)
        serve = self._took(candidate, [loaded], [recorded_code(candidate.stored, prefix)]).serve[0]
        self.journal.notes.append("model restored, not built: its config, files and packages are the same")
        return served, serve

    def note_broken(self) -> None:
        """Names the entries whose header cannot be read: nobody can say whether one was looked for."""
        for broken in [] if self.store is None else self.store.entries():
            if isinstance(broken, Broken):
                self.journal.note(f"{broken.error}: it was left out of the search")

    def note_other_target(self) -> None:
        """Names an entry that would have served this start, had it been compiled for its target."""
        line, found = ("", ()) if self.store is None else other_target(self.store, self.plan)
        if line:
            self.journal.note(line)
            self.journal.reasons.extend(found)

    def _took(self, candidate: Candidate, loaded: list[CompiledPart], codes: list[Code]) -> Found:
        journal, entry = self.journal, candidate.entry
        self.candidates.release(candidate.stored)
        journal.outcome, journal.entry, journal.key = "hit", entry, candidate.key
        journal.aot, journal.compiled_phases = candidate.file, candidate.phases
        journal.smallest = max(part.door.smallest for part in loaded)
        journal.reasons.clear()
        pieces = candidate.stored.pieces
        journal.pieces = PieceCounts(pieces["total"], pieces["distinct"], 0, pieces["total"])
        journal.counts["artifacts_loaded"] += len(candidate.stored.artifacts())
        serve: list[Callable[..., Any]] = [*loaded]
        if entry is not None and self.store is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            update_state(self.store.root, entry.path, last_used=now)
            self._renew(candidate, entry)
            serve = tried(self.store.root, entry, loaded)
        elif isinstance(candidate.stored, AotStored) and self.store is not None:
            serve = tried(self.store.root, candidate.stored.file.header, loaded)
        return Found(candidate.short, candidate.checked, loaded, serve, codes)

    def _renew(self, candidate: Candidate, entry: Entry) -> None:
        """An entry that serves a start without its AOT file gets it back."""
        if candidate.file is not None or not self.use.enabled or self.use.path or entry.aot is None:
            return
        assert self.store is not None
        if self.store.renew_aot(entry, RANK):
            self.journal.note(f"the AOT file of entry {entry.short} was missing or damaged: written again")

    def _damaged(self, candidate: Candidate, damage: EntryDamaged) -> None:
        if candidate.file is not None:
            # The entry is looked at next, and gives a new file.
            self.journal.note(f"{damage}: the file is not used")
            self.journal.reasons.append(_damage(candidate, damage))
            return
        assert self.store is not None
        assert candidate.entry is not None
        reason = {"reason": str(damage), "command": self.command}
        place = self.store.set_aside(candidate.entry, reason, only_if_damaged=True)
        moved = " and was set aside" if place is not None else ""
        self.journal.note(f"{damage}{moved}")
        self.journal.reasons.append(_damage(candidate, damage))

    def _refused(self, candidate: Candidate, refusal: LoadRefused) -> None:
        what = f"{'AOT file of ' if candidate.file is not None else 'entry '}{candidate.short}"
        if isinstance(refusal, PieceRefused):
            if candidate.entry is not None and self.store is not None:
                aside = note_refusal(self.store, candidate.entry, refusal, self.command)
                if aside is not None:
                    self.journal.note(aside)
            self._mend(candidate, {refusal.artifact: refusal.reason})
        else:
            self.journal.refuse(Difference("cache", what, "usable", refusal.reason))

    def _mend(self, candidate: Candidate, broken: Mapping[str, str]) -> None:
        for why in broken.values():
            self.journal.refuse(
                Difference("cache", f"entry {candidate.short}", "sound", why, kind="cannot verify")
            )
        stored = candidate.stored if candidate.entry is None else EntryStored(candidate.entry)
        self.mending = Mending(stored, candidate.key, frozenset(broken))

    def demand(self) -> None:
        """Raises AotRefused where an AOT file is demanded, for the first reason that was found."""
        if not self.use.force:
            return
        if not self.journal.reasons:
            self.note_other_target()
        if not self.journal.reasons:
            raise AotRefused("", "no AOT file is there for this start", "graphkiln precompile writes one")
        reason = self.journal.reasons[0]
        where = str(self.use.path or self._looked_at())
        raise AotRefused(where, told(reason), reason.remedy or self.use.unforced)

    def _looked_at(self) -> str:
        return ", ".join(candidate.short for candidate in self.candidates.files()) or "of this start"


def _damage(candidate: Candidate, damage: EntryDamaged) -> Difference:
    detail = f" ({damage.detail})" if damage.detail else ""
    what = f"{damage.file}: {damage.fault}{detail}"
    return Difference("cache", f"entry {candidate.short}", "sound", what, kind="cannot verify")
