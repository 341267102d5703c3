"""Looking for an entry that this start may use: every check of it, and what becomes of one that fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from graphkiln.cache.errors import EntryDamaged, RootUnusable
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Broken, Store
from graphkiln.cache.store.trial import is_suspect
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.errors import LoadRefused
from graphkiln.core.first_call import tried
from graphkiln.core.journal import Journal
from graphkiln.core.loading import RANK, differences, load_entry_part, recorded_code, restored
from graphkiln.core.models.served import ServedModel
from graphkiln.core.part import Part
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.report import PieceCounts

# A part's code factor and the digests of its source files.
Code = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Found:
    """An entry that passed every check, and its parts ready to be called, in the order of the parts."""

    entry: Entry
    serve: list[CompiledPart]
    codes: list[Code]


class Finder:
    """The entries of one store as one start sees them; what it finds out goes into the journal."""

    def __init__(self, plan: Plan, store: Store, phases: Phases, journal: Journal, command: str) -> None:
        self.plan = plan
        self.store = store
        self.phases = phases
        self.journal = journal
        self.command = command

    def candidates(self) -> list[Entry]:
        """Returns the entries with this start's lookup, newest first. Raises RootUnusable."""
        return [] if self.plan.lookup is None else self.store.find(self.plan.lookup)

    def find(self, parts: Sequence[Part]) -> Found | None:
        """Returns the first entry that was compiled for these very parts, None where there is none."""
        modules = {part.prefix: part.module for part in parts}
        for entry in self.candidates():
            if self._skips(entry):
                continue
            try:
                with self.phases.phase("verify"):
                    found = differences(entry, modules)
                if found:
                    self.journal.reasons.extend(found)
                    continue
                with self.phases.phase("load"):
                    serve = [
                        load_entry_part(entry, part.prefix, part.module, self.plan.target) for part in parts
                    ]
            except EntryDamaged as damage:
                self._reject(entry, str(damage))
                continue
            except LoadRefused as refusal:
                self._because(Difference("compiler", f"entry {entry.short}", "usable", refusal.reason))
                continue
            self._took(entry, max(one.door.smallest for one in serve))
            return Found(entry, serve, [recorded_code(entry, part.prefix) for part in parts])
        return None

    def reopen(self, prefix: str) -> tuple[ServedModel, Callable[..., Any]] | None:
        """Returns a model and its compiled part from an entry that knows how to do without building it.

        None is no news: the model is built then, and `find` finds out and says what is different.
        """
        source = self.plan.source
        if source is None:
            return None
        with contextlib.suppress(EntryDamaged, LoadRefused, RootUnusable):
            for entry in self.candidates():
                if self._skips(entry):
                    continue
                with self.phases.phase("model"):
                    device = self.plan.target.torch_device
                    served, why = restored(entry, prefix, source, self.plan.deployment, device)
                if served is None:
                    self.phases.note(f"the model is built: {why}")
                    continue
                with self.phases.phase("load"):
                    serve = load_entry_part(entry, prefix, served.backbone, self.plan.target)
                self._took(entry, serve.door.smallest)
                self.journal.notes.append(
                    "model restored, not built: its config, files and packages are the same"
                )
                return served, tried(self.store.root, entry, [serve])[0]
        return None

    def note_broken(self) -> None:
        """Names the entries whose header cannot be read: nobody can say whether one was looked for."""
        for broken in self.store.entries():
            if isinstance(broken, Broken):
                self.journal.note(f"{broken.error}: it was left out of the search")

    def _skips(self, entry: Entry) -> bool:
        """Whether an entry ended a process before; it is out of the way then, and a new one is made."""
        if not is_suspect(self.store.root, entry):
            return False
        reason = "its first call ended a process"
        place = self.store.set_aside(entry, {"reason": reason, "command": self.command})
        moved = " and was set aside" if place is not None else ""
        self.journal.note(f"entry {entry.short} is suspect{moved}: {reason}")
        self._because(
            Difference(
                "code", f"entry {entry.short}", "a first call that returns", reason, kind="cannot verify"
            )
        )
        return True

    def _took(self, entry: Entry, smallest: int) -> None:
        journal = self.journal
        journal.outcome, journal.entry, journal.key = "hit", entry, entry.key
        journal.smallest = smallest
        journal.reasons.clear()
        pieces = entry.header["pieces"]
        journal.pieces = PieceCounts(pieces["total"], pieces["distinct"], 0, pieces["total"])
        journal.counts["artifacts_loaded"] += len(entry.manifest(RANK).artifacts)
        update_state(self.store.root, entry.path, last_used=datetime.now(UTC).isoformat(timespec="seconds"))

    def _reject(self, entry: Entry, reason: str) -> None:
        place = self.store.set_aside(entry, {"reason": reason, "command": self.command}, only_if_damaged=True)
        moved = " and was set aside" if place is not None else ""
        self.journal.note(f"entry {entry.short} is damaged{moved}: {reason}")
        self._because(Difference("code", f"entry {entry.short}", "sound", reason, kind="cannot verify"))

    def _because(self, reason: Difference) -> None:
        self.journal.reasons.append(reason)
