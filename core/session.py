"""One start of one model: find an entry and check it, or trace, compile, check and publish one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from graphkiln.cache.errors import CacheError, LockTimeout, NotCanonical, RootUnusable
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.env import read
from graphkiln.cache.store.halves import aot_name
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.surroundings import require_exec
from graphkiln.core.aot_use import AotUse, aot_use
from graphkiln.core.attending import Attending
from graphkiln.core.building import Builder, Built
from graphkiln.core.comparing import compare
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.config.modes import CompilationMode
from graphkiln.core.errors import Bypass
from graphkiln.core.finding import Code, Finder
from graphkiln.core.journal import Journal, bypass_difference, why_bypass
from graphkiln.core.ledger import ledger_line
from graphkiln.core.mending import Mending
from graphkiln.core.models.served import ServedModel
from graphkiln.core.part import Part
from graphkiln.core.parts import Context
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.publication import entry_header, publish
from graphkiln.core.report import StartReport
from graphkiln.core.scratch import compiler_folder
from graphkiln.core.stored import RANK
from graphkiln.core.trace.decorator import plain_calls
from graphkiln.core.trace.guarded import guarded
from graphkiln.core.uncached import eager_part, stock_compile, why_uncached

if TYPE_CHECKING:
    from graphkiln.core.compile.dump import DebugDump

# Looks at the checked parts once more, all of them together.
Prove = Callable[[Sequence[Callable[..., Any]]], None]


class Session:
    """Opens the parts of a model: from the cache, or compiled and published."""

    def __init__(
        self,
        plan: Plan,
        store: Store | None,
        phases: Phases,
        *,
        command: str,
        store_source: bool = True,
        aot: AotUse | None = None,
    ) -> None:
        self.plan = plan
        self.store = store
        self.phases = phases
        self.command = command
        self.store_source = store_source
        self.journal = Journal(plan, phases)
        self.aot = aot or aot_use()
        # Without a cache, a file that was named may still serve.
        there = store is not None or self.aot.path is not None
        self.finder = Finder(plan, store, phases, self.journal, command, self.aot) if there else None
        self._describe: Callable[[], dict[str, Any] | None] | None = None
        self._prove: Prove | None = None
        self._attending: Attending | None = None
        self.dump: DebugDump | None = None

    def open(
        self,
        parts: Sequence[Part],
        *,
        must_publish: bool,
        check: Context | None = None,
        compiles: bool = True,
        describe: Callable[[], dict[str, Any] | None] | None = None,
        prove: Prove | None = None,
        attending: Attending | None = None,
    ) -> list[Callable[..., Any]]:
        """Returns what serves each part's calls: compiled code, or eager where nothing may be compiled.

        All parts are in one entry. `must_publish` makes a cache that cannot be written an error; without it
        the parts are compiled and served all the same. `check` gives the context of a call by token count,
        `describe` what a later start needs in place of the model. `prove` gets what was checked: what it
        raises ends the start before it publishes. `attending` takes or makes the kernels between the pieces.
        """
        self._describe, self._prove, self._attending = describe, prove, attending
        with plain_calls():
            return self._open(parts, must_publish, check, compiles)

    def _open(
        self, parts: Sequence[Part], must_publish: bool, check: Context | None, compiles: bool
    ) -> list[Callable[..., Any]]:
        eager = [part.module.forward for part in parts]
        journal = self.journal
        uncached = why_uncached(self.plan.compilation)
        if uncached is not None:
            journal.reasons.append(uncached)
            journal.outcome = "bypass"
            return self._uncached(parts) if compiles else eager
        if self.plan.factors is None or self.finder is None:
            journal.reasons.append(why_bypass(self.plan))
            journal.outcome = "bypass"
            return self._in_memory(parts, check) if compiles else eager
        try:
            if (found := self._from_cache(self.finder, parts, check)) is not None:
                return found
            self.finder.note_broken()
            if not self.finder.has_candidate():
                self.finder.note_other_target()
            if not compiles:
                return eager
            if self.store is None:
                journal.reasons.append(why_bypass(self.plan))
                journal.outcome = "bypass"
                return self._in_memory(parts, check)
            with self._alone():
                # Whoever held the lock may have published it meanwhile.
                found = self._again(self.finder, parts, check)
                return found or self._compile(parts, check, must_publish)
        except (Bypass, NotCanonical) as refusal:
            journal.reasons = [bypass_difference(refusal)]
        except CacheError as error:
            if must_publish:
                raise
            journal.note(f"{error}: compiled and served without the cache")
        journal.outcome = "bypass"
        return self._in_memory(parts, check) if compiles else eager

    def reopen(self, prefix: str) -> tuple[ServedModel, Callable[..., Any]] | None:
        """Returns a model and its compiled part without building the model; None where it must be built."""
        compilation = self.plan.compilation
        if self.finder is None or compilation.dynamic_shapes.evaluate_guards or why_uncached(compilation):
            return None
        return self.finder.reopen(prefix)

    def demand(self) -> None:
        """Raises AotRefused where an AOT file is demanded and there is none to look at any closer."""
        if self.finder is not None and self.aot.force and not self.finder.candidates.files():
            self.finder.demand()

    def has_candidate(self) -> bool:
        """Whether an entry with this lookup is there, so that a start may compile nothing."""
        with contextlib.suppress(RootUnusable):
            return self.finder is not None and self.finder.has_candidate()
        return False

    def has_unchecked(self) -> bool:
        """Whether an entry with this lookup was never compared with eager."""
        return self.finder is not None and any(not one.checked for one in self.finder.candidates)

    def require_means(self, *, must_publish: bool) -> None:
        """Raises now what would end a compile late: no compiler, no place to write or to load from."""
        if must_publish and self.store is not None:
            self.store.root.ensure()
            require_exec(self.store.root.path)
        from graphkiln.core.compile.inductor import require_means

        require_means(self.plan.target)

    def _uncached(self, parts: Sequence[Part]) -> list[Callable[..., Any]]:
        if self.plan.compilation.mode is CompilationMode.STOCK_TORCH_COMPILE:
            return [stock_compile(part, self.plan.compilation) for part in parts]
        traced = self._builder().trace(parts, keyed=False)
        return [eager_part(part, one, self.plan) for part, one in zip(parts, traced, strict=True)]

    def _from_cache(
        self, finder: Finder, parts: Sequence[Part], check: Context | None
    ) -> list[Callable[..., Any]] | None:
        found = finder.find(parts, self._attending)
        if found is None:
            return None
        if check is not None and not found.checked:
            self.journal.note(f"entry {found.short} was published without a check: compared with eager now")
            self._compare(parts, [one.door.smallest for one in found.parts], found.parts, check)
        return self._guarded(parts, found.serve, found.codes)

    def _again(
        self, finder: Finder, parts: Sequence[Part], check: Context | None
    ) -> list[Callable[..., Any]] | None:
        """Looks a second time: what was told the first time is not told again."""
        journal, reasons, notes = self.journal, self.journal.reasons, list(self.journal.notes)
        journal.reasons = []
        finder.candidates.forget()
        with self.phases.quiet():
            found = self._from_cache(finder, parts, check)
        if found is None:
            journal.reasons, journal.notes = reasons, notes
        return found

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock of this lookup, so that of several starts one compiles; not for ever."""
        assert self.store is not None
        assert self.plan.lookup is not None
        limit = read("GRAPHKILN_LOCK_TIMEOUT")
        with contextlib.ExitStack() as held:
            with self.phases.phase("wait"):
                try:
                    held.enter_context(
                        build_lock(self.store.root, f"build-{self.plan.lookup[:16]}", limit, self.plan.label)
                    )
                except LockTimeout as error:
                    self.journal.note(f"{error}: compiling without waiting any longer")
            yield

    def _compile(
        self, parts: Sequence[Part], check: Context | None, must_publish: bool
    ) -> list[Callable[..., Any]]:
        assert self.store is not None
        builder = self._builder()
        traced = builder.trace(parts, keyed=True)
        codes = {part.prefix: one.code.factor for part, one in zip(parts, traced, strict=True)}
        factors = self.plan.with_code(codes)
        key = self.journal.key = factors.key
        with self.store.draft(key) as draft, compiler_folder(draft.scratch) as scratch:
            built = builder.build(parts, traced, scratch, self._mending(key), self._attending)
            serve = self._checked(parts, built, check)
            with self.phases.phase("publish"), self._kept_apart(must_publish):
                header = entry_header(self.plan, self.report(), self.command)
                description = self._describe() if self._describe is not None else None
                entry = publish(
                    self.store, draft, factors, header, built.files, description=description,
                    store_source=self.store_source, aot=self.aot.published, attention=built.attention,
                )  # fmt: skip
                self.journal.outcome, self.journal.entry = "compiled", entry
        return serve

    def _mending(self, key: str) -> Mending | None:
        """What of a damaged entry with this very key can be kept."""
        found = None if self.finder is None else self.finder.mending
        return found if found is not None and found.key == key else None

    @contextlib.contextmanager
    def _kept_apart(self, must_publish: bool) -> Iterator[None]:
        """What was compiled is served also where it cannot be published, unless that was the purpose."""
        try:
            yield
        except CacheError as error:
            if must_publish:
                raise
            self.journal.note(f"{error}: compiled and served without the cache")
            self.journal.outcome = "bypass"

    def _in_memory(self, parts: Sequence[Part], check: Context | None) -> list[Callable[..., Any]]:
        builder = self._builder()
        traced = builder.trace(parts, keyed=False)
        with compiler_folder() as scratch:
            return self._checked(parts, builder.build(parts, traced, scratch), check)

    def _builder(self) -> Builder:
        return Builder(self.plan, self.phases, self.journal, self.dump)

    def _checked(
        self, parts: Sequence[Part], built: Built, check: Context | None
    ) -> list[Callable[..., Any]]:
        if check is not None:
            self._compare(parts, built.smallest, built.serve, check)
        return self._guarded(parts, built.serve, built.codes)

    def _compare(
        self, parts: Sequence[Part], smallest: Sequence[int], serve: Sequence[CompiledPart], check: Context
    ) -> None:
        compare(self.journal, parts, smallest, serve, check)
        if self._prove is not None:
            self._prove(serve)

    def _guarded(
        self, parts: Sequence[Part], serve: Sequence[Callable[..., Any]], codes: Sequence[Code]
    ) -> list[Callable[..., Any]]:
        if not codes or not self.plan.compilation.dynamic_shapes.evaluate_guards:
            return [*serve]
        return [guarded(one, *code, part.module) for part, one, code in zip(parts, serve, codes, strict=True)]

    def settle_aot(self) -> None:
        """Sees to the entry's AOT file and notes where it lies. CacheError where it cannot be as asked."""
        entry, store = self.journal.entry, self.store
        if entry is None or store is None or self.aot.published is None:
            return
        if self.aot.contained:
            store.contain_aot(entry, RANK)
        path = store.root.cache / aot_name(entry.key, RANK)
        if self.journal.aot is None and path.exists():
            self.journal.aot = path

    def report(self, reasons: Sequence[Difference] = ()) -> StartReport:
        """Returns what this start did so far."""
        return self.journal.report(reasons)

    def record(self, report: StartReport) -> None:
        """Writes one line about this start into the ledger, where that is possible."""
        if self.store is not None:
            self.store.record_start(ledger_line(self.plan, report, self.command))
