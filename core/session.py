"""One start of one model: find an entry and check it, or trace, compile, check and publish one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkiln.cache.errors import CacheError, EntryDamaged, LockTimeout, NotCanonical, RootUnusable
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.env import read
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Store
from graphkiln.core import evidence
from graphkiln.core.errors import Bypass, CheckFailed, LoadRefused
from graphkiln.core.ledger import ledger_line
from graphkiln.core.loading import (
    RANK,
    FreshArtifact,
    differences,
    load_entry_part,
    load_part,
    require_cpu,
    restored,
)
from graphkiln.core.models.served import ServedModel
from graphkiln.core.part import Part
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.publication import entry_header, publish
from graphkiln.core.report import CheckReport, Decision, Outcome, PieceCounts, StartReport
from graphkiln.core.scratch import compiler_folder

if TYPE_CHECKING:
    from graphkiln.core.compile.build import BuiltPart
    from graphkiln.core.compile.dump import DebugDump
    from graphkiln.core.tracing import TracedPart

Context = Callable[[int], contextlib.AbstractContextManager[Any]]


class Session:
    """Opens a part and remembers what happened, for the report, the ledger and the entry's header."""

    def __init__(
        self, plan: Plan, store: Store | None, phases: Phases, *, command: str, store_source: bool = True
    ) -> None:
        self.plan = plan
        self.store = store
        self.phases = phases
        self.command = command
        self.store_source = store_source
        self.dump: DebugDump | None = None
        self._passes: tuple[Mapping[str, Any], ...] = ()
        self.outcome: Outcome = "miss"
        self.smallest = 1
        self._began = evidence.begin()
        self._entry: Entry | None = None
        self._key: str | None = None
        self._reasons: list[Difference] = []
        self._decisions: list[Decision] = list(plan.decisions)
        self._notes: list[str] = []
        self._check: CheckReport | None = None
        self._pieces = PieceCounts()
        self._counts = {"kernels_compiled": 0, "artifacts_loaded": 0}
        self._describe: Callable[[], dict[str, Any] | None] | None = None

    def open(
        self,
        part: Part,
        *,
        must_publish: bool,
        check: Context | None = None,
        compiles: bool = True,
        describe: Callable[[], dict[str, Any] | None] | None = None,
    ) -> Callable[..., Any]:
        """Returns what serves a part's calls: compiled code, or eager where nothing may be compiled.

        `must_publish` makes a cache that cannot be written an error; without it the part is
        compiled and served all the same. `check` gives the context of a call by token count;
        `describe` what a later start needs to do without building the model.
        """
        self._describe = describe
        if self.plan.factors is None or self.store is None:
            self._reasons.append(self._why_bypass())
            self.outcome = "bypass"
            return self._in_memory(part, check) if compiles else part.module.forward
        try:
            found = self._from_cache(part)
            if found is not None or not compiles:
                return found or part.module.forward
            with self._alone():
                # Whoever held the lock may have published it meanwhile.
                return self._from_cache(part, again=True) or self._compile(part, check)
        except (Bypass, NotCanonical) as refusal:
            self._reasons = [_bypass_difference(refusal)]
        except CacheError as error:
            if must_publish:
                raise
            self._note(f"{error}: compiled and served without the cache")
        self.outcome = "bypass"
        return self._in_memory(part, check)

    def reopen(self, prefix: str) -> tuple[ServedModel, Callable[..., Any]] | None:
        """Returns a model and its compiled part from an entry that knows how to do without building it.

        None is no news: the model is built then, and `open` finds out and says what is different.
        """
        source, lookup = self.plan.source, self.plan.lookup
        if self.store is None or source is None or lookup is None:
            return None
        with contextlib.suppress(EntryDamaged, LoadRefused, RootUnusable):
            for entry in self.store.find(lookup):
                with self.phases.phase("model"):
                    served, why = restored(entry, prefix, source, self.plan.deployment)
                if served is None:
                    self.phases.note(f"the model is built: {why}")
                    continue
                with self.phases.phase("load"):
                    serve = load_entry_part(entry, prefix, served.backbone, self.plan.target)
                self._took(entry, serve.door.smallest)
                self._notes.append("model restored, not built: its config, files and packages are the same")
                return served, serve
        return None

    def has_candidate(self) -> bool:
        """Whether an entry with this lookup is there, so that a start may compile nothing."""
        try:
            return self.store is not None and bool(self.plan.lookup and self.store.find(self.plan.lookup))
        except RootUnusable:
            return False

    def require_means(self, *, must_publish: bool) -> None:
        """Raises now what would end a compile late: no compiler, no place to write."""
        if must_publish and self.store is not None:
            self.store.root.ensure()
        from graphkiln.core.compile.inductor import require_compiler

        require_compiler()

    def _from_cache(self, part: Part, again: bool = False) -> Callable[..., Any] | None:
        assert self.store is not None
        assert self.plan.lookup is not None
        if again:
            self._reasons.clear()
        for entry in self.store.find(self.plan.lookup):
            try:
                with self.phases.phase("verify"):
                    found = differences(entry, part.prefix, part.module)
                if found:
                    self._reasons.extend(found)
                    continue
                with self.phases.phase("load"):
                    serve = load_entry_part(entry, part.prefix, part.module, self.plan.target)
            except EntryDamaged as damage:
                self._reject(entry, str(damage))
                continue
            except LoadRefused as refusal:
                self._reasons.append(Difference("compiler", f"entry {entry.short}", "usable", refusal.reason))
                continue
            self._took(entry, serve.door.smallest)
            return serve
        return None

    def _took(self, entry: Entry, smallest: int) -> None:
        assert self.store is not None
        self.outcome, self._entry, self._key = "hit", entry, entry.key
        self.smallest = smallest
        self._reasons.clear()
        pieces = entry.header["pieces"]
        self._pieces = PieceCounts(pieces["total"], pieces["distinct"], 0, pieces["total"])
        self._counts["artifacts_loaded"] += pieces["distinct"]
        update_state(self.store.root, entry.path, last_used=datetime.now(UTC).isoformat(timespec="seconds"))

    def _reject(self, entry: Entry, reason: str) -> None:
        assert self.store is not None
        place = self.store.set_aside(entry, {"reason": reason, "command": self.command}, only_if_damaged=True)
        moved = " and was set aside" if place is not None else ""
        self._note(f"entry {entry.short} is damaged{moved}: {reason}")
        self._reasons.append(
            Difference("code", f"entry {entry.short}", "sound", reason, kind="cannot verify")
        )

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
                    self._note(f"{error}: compiling without waiting any longer")
            yield

    def _compile(self, part: Part, check: Context | None) -> Callable[..., Any]:
        assert self.store is not None
        assert self.plan.factors is not None
        traced = self._trace(part)
        factors = self.plan.with_code({part.prefix: traced.code.factor})
        self._key = factors.key
        with self.store.draft(factors.key) as draft, compiler_folder(draft.scratch) as scratch:
            serve, built = self._build(part, traced, scratch, check)
            with self.phases.phase("publish"):
                entry = publish(
                    draft, factors, entry_header(self.plan, self.report(), self.command), part.prefix,
                    traced, built, store_source=self.store_source,
                    description=self._describe() if self._describe is not None else None,
                )  # fmt: skip
        self.outcome, self._entry = "compiled", entry
        return serve

    def _in_memory(self, part: Part, check: Context | None) -> Callable[..., Any]:
        traced = self._trace(part)
        with compiler_folder() as scratch:
            return self._build(part, traced, scratch, check)[0]

    def _trace(self, part: Part) -> TracedPart:
        with self.phases.phase("trace"):
            # Here and not above: a hit imports neither Dynamo's tracer nor Inductor.
            from graphkiln.core.tracing import trace_part

            traced = trace_part(part, self.plan)
        self.smallest = traced.smallest
        self._decisions.extend(traced.decisions)
        if self.dump is not None:
            self.dump.part(RANK, part.prefix).traced(traced.capture, traced.code.factor)
        return traced

    def _build(
        self, part: Part, traced: TracedPart, scratch: Path, check: Context | None
    ) -> tuple[Callable[..., Any], BuiltPart]:
        with self.phases.phase("compile"):
            from graphkiln.core.compile.build import build_part

            dump = None if self.dump is None else self.dump.part(RANK, part.prefix)
            settings = replace(self.plan.settings(traced.smallest, scratch), dump=dump)
            built = build_part(
                part.module, traced.capture, part.dynamic, self.plan.config.effective_splitting_ops,
                settings, self.phases.progress.pieces,
            )  # fmt: skip
        self._passes = built.passes
        distinct = len(built.artifacts)
        self._pieces = PieceCounts(built.pieces_total, distinct, distinct, built.pieces_total - distinct)
        self._counts["kernels_compiled"] += sum(artifact.kernels for artifact in built.artifacts)
        with self.phases.phase("load"):
            require_cpu("just built", self.plan.target)
            artifacts = [FreshArtifact(artifact.files) for artifact in built.artifacts]
            serve = load_part(built.wiring, artifacts, part.module, "just built")
        if check is not None:
            from graphkiln.core.compile.check import check_counts, check_part

            with self.phases.phase("check"):
                counts = check_counts(traced.smallest, self.plan.largest)
                self._check = check_part(serve, part.module.forward, part.arguments, check, counts)
            for row in self._check.rows:
                if not row.ok:
                    raise CheckFailed(row.num_tokens, row.max_abs_error, row.tolerance)
        return serve, built

    def _why_bypass(self) -> Difference:
        if self.plan.refusal is not None:
            return _bypass_difference(self.plan.refusal)
        name = "GRAPHKILN_DISABLE_COMPILE_CACHE"
        if read(name):
            return Difference("env", name, "0", "1", relevant=False, remedy=f"unset {name}")
        return Difference("env", "cache root", "usable", "not usable", relevant=False, remedy="see the notes")

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self.phases.note(text)

    def report(self, reasons: Sequence[Difference] = ()) -> StartReport:
        """Returns what this start did so far."""
        entry = self._entry
        return StartReport(
            outcome=self.outcome,
            key=self._key,
            lookup=self.plan.lookup,
            target=self.plan.target.name,
            entry_path=None if entry is None else entry.path,
            phases=self.phases.rows(),
            pieces=self._pieces,
            entry_bytes=0 if entry is None else entry.total_bytes,
            decisions=tuple(self._decisions),
            reasons=(*self._reasons, *reasons),
            check=self._check,
            counts={**self._began.since(), **self._counts},
            notes=tuple(self._notes),
            compiled_seconds=None if entry is None else sum(seconds for _, seconds in entry.header["phases"]),
            passes=self._passes,
        )

    def record(self, report: StartReport) -> None:
        """Writes one line about this start into the ledger, where that is possible."""
        if self.store is None:
            return
        self.store.record_start(ledger_line(self.plan, report, self.command))


def _bypass_difference(refusal: Bypass | NotCanonical) -> Difference:
    factor = refusal.factor if isinstance(refusal, Bypass) else refusal.where.split(".")[0]
    return Difference(factor, "not cacheable", None, refusal.reason, kind="cannot verify")
