"""What a start may find itself in: the AOT files with its lookup, and after them the entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.store.aot import AotFile
from graphkiln.cache.store.aot_header import AotHeader
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.halves import aot_name, open_aot_at
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.trial import is_suspect, stays_suspect
from graphkiln.core.aot_use import AotUse
from graphkiln.core.fetching import Fetch
from graphkiln.core.journal import Journal
from graphkiln.core.judging import judge
from graphkiln.core.plan import Plan
from graphkiln.core.stored import RANK, AotStored, EntryStored, Stored

# Of a file for another device, what of it differs; of one for another model, enough.
_MOST_TOLD = 4


@dataclass(frozen=True)
class Candidate:
    """Stored parts, the entry that they belong to, and where an AOT file lies; an entry has no `file`."""

    stored: Stored
    key: str
    entry: Entry | None
    file: Path | None = None
    checked: bool = False
    phases: list[tuple[str, float]] = field(default_factory=list)

    @property
    def short(self) -> str:
        return self.key[:SHORT_DIGITS]

    @cached_property
    def fetch(self) -> Fetch:
        """The artifacts' files, being read since this was first asked for."""
        return Fetch(self.stored)

    def release(self) -> None:
        """Lets go of what was fetched and not mapped; the candidate serves nothing any more."""
        if "fetch" in self.__dict__:
            self.fetch.close()


class Candidates:
    """Candidates as one start sees them, found once; why one is left out goes into the journal."""

    def __init__(self, plan: Plan, store: Store | None, journal: Journal, use: AotUse, command: str) -> None:
        self.plan = plan
        self.store = store
        self.journal = journal
        self.use = use
        self.command = command
        self._files: list[Candidate] | None = None
        self._entries: list[Candidate] | None = None

    def forget(self) -> None:
        """Looks again the next time: somebody may have published something."""
        self._files = self._entries = None

    def release(self, *kept: Stored | None) -> None:
        """Lets go of what was fetched of every candidate but those with the parts `kept`."""
        for candidate in (*(self._files or ()), *(self._entries or ())):
            if not any(candidate.stored is one for one in kept):
                candidate.release()

    def __iter__(self) -> Iterator[Candidate]:
        """Yields AOT files, newest first, and then entries; none of these where a file is demanded."""
        yield from self.files()
        if not self.use.force:
            yield from self.entries()

    def files(self) -> list[Candidate]:
        """Returns the AOT files whose header has nothing against this start. Raises RootUnusable."""
        if self._files is None:
            self._files = [*self._judged()]
        return self._files

    def entries(self) -> list[Candidate]:
        """Returns the entries with this start's lookup, newest first. Raises RootUnusable."""
        if self._entries is None:
            store, lookup = self.store, self.plan.lookup
            found = [] if store is None or lookup is None else store.find(lookup)
            self._entries = [_of_entry(entry) for entry in found if not self._skips(entry)]
        return self._entries

    def _judged(self) -> Iterator[Candidate]:
        for file, path in self._opened():
            entry = None if self.store is None else self.store.entry_of(file.header.key)
            lone = entry is None and self.use.path is None
            if lone or (entry is not None and self._skips(entry)):
                file.close()
                continue
            if entry is None and self._crashed(file.header):
                file.close()
                continue
            found = judge(file.header, self.plan)
            if found:
                self.journal.reasons.extend(found)
                self.journal.note(
                    f"AOT file of {file.header.short} is not used: {'; '.join(map(told, found[:_MOST_TOLD]))}"
                )
                file.close()
                continue
            body = file.header.body
            stored = AotStored(file, None if entry is None else entry.files)
            phases = [(str(name), float(seconds)) for name, seconds in body.get("phases") or ()]
            yield Candidate(stored, file.header.key, entry, path, bool(body["checked"]), phases)

    def _opened(self) -> Iterator[tuple[AotFile, Path]]:
        if self.use.path is not None:
            name = f"AOT file {self.use.path}"
            try:
                yield open_aot_at(self.use.path), self.use.path
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                self.journal.refuse(Difference("cache", name, "readable", why))
            except EntryDamaged as damage:
                why = f"{damage.fault} ({damage.detail})"
                self.journal.refuse(Difference("cache", name, "sound", why, kind="cannot verify"))
        elif self.use.enabled and self.store is not None and self.plan.lookup is not None:
            for file in self.store.find_aot(self.plan.lookup, RANK):
                if isinstance(file, EntryDamaged):
                    self._damaged(file)
                    continue
                yield file, self.store.root.cache / aot_name(file.header.key, RANK)

    def _damaged(self, damage: EntryDamaged) -> None:
        """Keeps why a file of the cache is not used; its entry is looked at next."""
        why = f"{damage.fault} ({damage.detail})" if damage.detail else damage.fault
        name = f"AOT file of entry {damage.entry}"
        self.journal.refuse(Difference("cache", name, "sound", why, kind="cannot verify"))

    def _crashed(self, header: AotHeader) -> bool:
        """Whether a file that was named ended a process before; its entry is not in this cache."""
        if self.store is None or not stays_suspect(self.store.root, header):
            return False
        reason = "its first call ended a process"
        self.journal.note(f"AOT file of {header.short} is not used: {reason}")
        name, remedy = f"AOT file of entry {header.short}", "make the file again, or leave it out"
        self.journal.refuse(
            Difference(
                "cache", name, "a first call that returns", reason, remedy=remedy, kind="cannot verify"
            )
        )
        return True

    def _skips(self, entry: Entry) -> bool:
        """Whether an entry ended a process before; it is out of the way then, and a new one is made."""
        assert self.store is not None
        choices = self.plan.choices
        if choices is not None and entry.header.get("choices") != choices.digest:
            self.journal.reasons.append(
                Difference("cache", f"build of entry {entry.short}", "other choices", choices.where)
            )
            return True
        if not is_suspect(self.store.root, entry):
            return False
        reason = "its first call ended a process"
        place = self.store.set_aside(entry, {"reason": reason, "command": self.command})
        moved = " and was set aside" if place is not None else ""
        self.journal.note(f"entry {entry.short} is suspect{moved}: {reason}")
        self.journal.reasons.append(
            Difference(
                "cache", f"entry {entry.short}", "a first call that returns", reason, kind="cannot verify"
            )
        )
        return True


def _of_entry(entry: Entry) -> Candidate:
    header = entry.header
    phases = [(str(name), float(seconds)) for name, seconds in header.get("phases") or ()]
    return Candidate(EntryStored(entry), entry.key, entry, None, bool(header.get("checked")), phases)


def told(reason: Difference) -> str:
    """Returns a difference as a clause."""
    if reason.kind == "cannot verify":
        return f"{reason.name}: {reason.now}"
    return f"{reason.name} was {reason.then!r}, here it is {reason.now!r}"
