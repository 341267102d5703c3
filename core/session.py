"""One start of one model: find an entry and check it, or trace, compile, check and publish one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from graphkiln.cache.errors import CacheError, LockTimeout, NotCanonical, RootUnusable
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.env import read
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.store import Store
from graphkiln.core.building import Builder, Built
from graphkiln.core.config.modes import CompilationMode
from graphkiln.core.errors import Bypass, CheckFailed
from graphkiln.core.finding import Code, Finder
from graphkiln.core.first_call import tried
from graphkiln.core.journal import Journal, bypass_difference
from graphkiln.core.ledger import ledger_line
from graphkiln.core.models.served import ServedModel
from graphkiln.core.part import Part
from graphkiln.core.parts import Context
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.publication import entry_header, publish
from graphkiln.core.report import CheckReport, CheckRow, StartReport
from graphkiln.core.scratch import compiler_folder
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
        self, plan: Plan, store: Store | None, phases: Phases, *, command: str, store_source: bool = True
    ) -> None:
        self.plan = plan
        self.store = store
        self.phases = phases
        self.command = command
        self.store_source = store_source
        self.journal = Journal(plan, phases)
        self.finder = Finder(plan, store, phases, self.journal, command) if store is not None else None
        self._describe: Callable[[], dict[str, Any] | None] | None = None
        self._prove: Prove | None = None
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
    ) -> list[Callable[..., Any]]:
        """Returns what serves each part's calls: compiled code, or eager where nothing may be compiled.

        All parts are in one entry. `must_publish` makes a cache that cannot be written an error;
        without it the parts are compiled and served all the same. `check` gives the context of a
        call by token count; `describe` what a later start needs to do without building the model;
        `prove` is called with what was checked, and what it raises ends the start before it publishes.
        """
        self._describe, self._prove = describe, prove
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
            journal.reasons.append(self._why_bypass())
            journal.outcome = "bypass"
            return self._in_memory(parts, check) if compiles else eager
        try:
            found = self._from_cache(self.finder, parts, check)
            if found is not None:
                return found
            self.finder.note_broken()
            if not compiles:
                return eager
            with self._alone():
                # Whoever held the lock may have published it meanwhile.
                journal.reasons.clear()
                found = self._from_cache(self.finder, parts, check)
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

    def has_candidate(self) -> bool:
        """Whether an entry with this lookup is there, so that a start may compile nothing."""
        with contextlib.suppress(RootUnusable):
            return self.finder is not None and bool(self.finder.candidates())
        return False

    def has_unchecked(self) -> bool:
        """Whether an entry with this lookup was never compared with eager."""
        found = [] if self.finder is None else self.finder.candidates()
        return any(not entry.header.get("checked") for entry in found)

    def require_means(self, *, must_publish: bool) -> None:
        """Raises now what would end a compile late: no compiler, no place to write."""
        if must_publish and self.store is not None:
            self.store.root.ensure()
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
        found = finder.find(parts)
        if found is None:
            return None
        entry, serve = found.entry, found.serve
        if check is not None and not entry.header.get("checked"):
            self.journal.note(f"entry {entry.short} was published without a check: compared with eager now")
            self._check_numbers(parts, [one.door.smallest for one in serve], serve, check)
        return self._guarded(parts, tried(finder.store.root, entry, serve), found.codes)

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
        factors = self.plan.with_code(
            {part.prefix: one.code.factor for part, one in zip(parts, traced, strict=True)}
        )
        self.journal.key = factors.key
        with self.store.draft(factors.key) as draft, compiler_folder(draft.scratch) as scratch:
            built = builder.build(parts, traced, scratch)
            serve = self._checked(parts, built, check)
            with self.phases.phase("publish"), self._kept_apart(must_publish):
                header = entry_header(self.plan, self.report(), self.command)
                description = self._describe() if self._describe is not None else None
                entry = publish(
                    draft, factors, header, built.files, description=description,
                    store_source=self.store_source,
                )  # fmt: skip
                self.journal.outcome, self.journal.entry = "compiled", entry
        return serve

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
            self._check_numbers(parts, built.smallest, built.serve, check)
        return self._guarded(parts, built.serve, built.codes)

    def _guarded(
        self, parts: Sequence[Part], serve: Sequence[Callable[..., Any]], codes: Sequence[Code]
    ) -> list[Callable[..., Any]]:
        if not codes or not self.plan.compilation.dynamic_shapes.evaluate_guards:
            return [*serve]
        return [guarded(one, *code, part.module) for part, one, code in zip(parts, serve, codes, strict=True)]

    def _check_numbers(
        self,
        parts: Sequence[Part],
        smallest: Sequence[int],
        serve: Sequence[Callable[..., Any]],
        check: Context,
    ) -> None:
        from graphkiln.core.compile.check import check_counts, check_part

        with self.phases.phase("check"):
            rows: list[CheckRow] = []
            for part, least, compiled in zip(parts, smallest, serve, strict=True):
                counts = check_counts(self.plan.ranges(least, part.encoder))
                rows += check_part(compiled, part.module.forward, part.arguments, check, counts).rows
            self.journal.check = CheckReport(tuple(rows))
        for row in rows:
            if not row.ok:
                raise CheckFailed(row.num_tokens, row.max_abs_error, row.tolerance)
        if self._prove is not None:
            self._prove(serve)

    def _why_bypass(self) -> Difference:
        if self.plan.refusal is not None:
            return bypass_difference(self.plan.refusal)
        name = "GRAPHKILN_DISABLE_COMPILE_CACHE"
        if read(name):
            return Difference("env", name, "0", "1", relevant=False, remedy=f"unset {name}")
        return Difference("env", "cache root", "usable", "not usable", relevant=False, remedy="see the notes")

    def report(self, reasons: Sequence[Difference] = ()) -> StartReport:
        """Returns what this start did so far."""
        return self.journal.report(reasons)

    def record(self, report: StartReport) -> None:
        """Writes one line about this start into the ledger, where that is possible."""
        if self.store is None:
            return
        self.store.record_start(ledger_line(self.plan, report, self.command))
