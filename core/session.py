"""One start of one model: find an entry and check it, or trace, compile, check and publish one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkiln.cache.errors import CacheError, EntryDamaged, LockTimeout, NotCanonical, RootUnusable
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.env import read
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Broken, Store
from graphkiln.cache.store.trial import is_suspect
from graphkiln.core import evidence
from graphkiln.core.config.modes import CompilationMode
from graphkiln.core.errors import Bypass, CheckFailed, LoadRefused
from graphkiln.core.first_call import tried
from graphkiln.core.ledger import ledger_line
from graphkiln.core.loading import (
    RANK,
    FreshArtifact,
    differences,
    load_entry_part,
    load_part,
    recorded_code,
    require_cpu,
    restored,
)
from graphkiln.core.models.served import ServedModel
from graphkiln.core.part import Part
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.publication import CompiledFiles, entry_header, piece_counts, publish
from graphkiln.core.report import CheckReport, CheckRow, Decision, Outcome, PieceCounts, StartReport
from graphkiln.core.scratch import compiler_folder
from graphkiln.core.trace.decorator import plain_calls
from graphkiln.core.trace.guarded import guarded
from graphkiln.core.uncached import eager_part, stock_compile, why_uncached

if TYPE_CHECKING:
    from graphkiln.core.compile.build import SealedArtifact
    from graphkiln.core.compile.dump import DebugDump
    from graphkiln.core.tracing import TracedPart

# A part's code factor and the digests of its source files.
Code = tuple[dict[str, Any], dict[str, Any]]
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
        self.dump: DebugDump | None = None
        self._passes: tuple[Mapping[str, Any], ...] = ()

    def open(
        self,
        parts: Sequence[Part],
        *,
        must_publish: bool,
        check: Context | None = None,
        compiles: bool = True,
        describe: Callable[[], dict[str, Any] | None] | None = None,
    ) -> list[Callable[..., Any]]:
        """Returns what serves each part's calls: compiled code, or eager where nothing may be compiled.

        All parts are in one entry. `must_publish` makes a cache that cannot be written an error;
        without it the parts are compiled and served all the same. `check` gives the context of a
        call by token count; `describe` what a later start needs to do without building the model.
        """
        self._describe = describe
        with plain_calls():
            return self._open(parts, must_publish, check, compiles)

    def _open(
        self, parts: Sequence[Part], must_publish: bool, check: Context | None, compiles: bool
    ) -> list[Callable[..., Any]]:
        eager = [part.module.forward for part in parts]
        uncached = why_uncached(self.plan.compilation)
        if uncached is not None:
            self._reasons.append(uncached)
            self.outcome = "bypass"
            return self._uncached(parts) if compiles else eager
        if self.plan.factors is None or self.store is None:
            self._reasons.append(self._why_bypass())
            self.outcome = "bypass"
            return self._in_memory(parts, check) if compiles else eager
        try:
            found = self._from_cache(parts, check)
            if found is not None or not compiles:
                return found or eager
            with self._alone():
                # Whoever held the lock may have published it meanwhile.
                return self._from_cache(parts, check, again=True) or self._compile(parts, check, must_publish)
        except (Bypass, NotCanonical) as refusal:
            self._reasons = [bypass_difference(refusal)]
        except CacheError as error:
            if must_publish:
                raise
            self._note(f"{error}: compiled and served without the cache")
        self.outcome = "bypass"
        return self._in_memory(parts, check) if compiles else eager

    def _uncached(self, parts: Sequence[Part]) -> list[Callable[..., Any]]:
        if self.plan.compilation.mode is CompilationMode.STOCK_TORCH_COMPILE:
            return [stock_compile(part, self.plan.compilation) for part in parts]
        traced = self._trace(parts, keyed=False)
        return [eager_part(part, one, self.plan) for part, one in zip(parts, traced, strict=True)]

    def reopen(self, prefix: str) -> tuple[ServedModel, Callable[..., Any]] | None:
        """Returns a model and its compiled part from an entry that knows how to do without building it.

        None is no news: the model is built then, and `open` finds out and says what is different.
        """
        source, lookup = self.plan.source, self.plan.lookup
        if self.store is None or source is None or lookup is None:
            return None
        if self.plan.compilation.dynamic_shapes.evaluate_guards or why_uncached(self.plan.compilation):
            return None
        with contextlib.suppress(EntryDamaged, LoadRefused, RootUnusable):
            for entry in self.store.find(lookup):
                if self._skips(entry):
                    continue
                with self.phases.phase("model"):
                    served, why = restored(entry, prefix, source, self.plan.deployment)
                if served is None:
                    self.phases.note(f"the model is built: {why}")
                    continue
                with self.phases.phase("load"):
                    serve = load_entry_part(entry, prefix, served.backbone, self.plan.target)
                self._took(entry, serve.door.smallest)
                self._notes.append("model restored, not built: its config, files and packages are the same")
                return served, tried(self.store.root, entry, [serve])[0]
        return None

    def has_candidate(self) -> bool:
        """Whether an entry with this lookup is there, so that a start may compile nothing."""
        try:
            return self.store is not None and bool(self.plan.lookup and self.store.find(self.plan.lookup))
        except RootUnusable:
            return False

    def has_unchecked(self) -> bool:
        """Whether an entry with this lookup was never compared with eager."""
        if self.store is None or self.plan.lookup is None:
            return False
        return any(not entry.header.get("checked") for entry in self.store.find(self.plan.lookup))

    def require_means(self, *, must_publish: bool) -> None:
        """Raises now what would end a compile late: no compiler, no place to write."""
        if must_publish and self.store is not None:
            self.store.root.ensure()
        from graphkiln.core.compile.inductor import require_compiler

        require_compiler()

    def _from_cache(
        self, parts: Sequence[Part], check: Context | None, again: bool = False
    ) -> list[Callable[..., Any]] | None:
        assert self.store is not None
        assert self.plan.lookup is not None
        if again:
            self._reasons.clear()
        for entry in self.store.find(self.plan.lookup):
            if self._skips(entry):
                continue
            try:
                with self.phases.phase("verify"):
                    found = differences(entry, {part.prefix: part.module for part in parts})
                if found:
                    self._reasons.extend(found)
                    continue
                with self.phases.phase("load"):
                    serve = [
                        load_entry_part(entry, part.prefix, part.module, self.plan.target) for part in parts
                    ]
            except EntryDamaged as damage:
                self._reject(entry, str(damage))
                continue
            except LoadRefused as refusal:
                self._reasons.append(Difference("compiler", f"entry {entry.short}", "usable", refusal.reason))
                continue
            self._took(entry, max(one.door.smallest for one in serve))
            if check is not None and not entry.header.get("checked"):
                self._note(f"entry {entry.short} was published without a check: compared with eager now")
                self._check_numbers(parts, [one.door.smallest for one in serve], serve, check)
            codes = [recorded_code(entry, part.prefix) for part in parts]
            return self._guarded(parts, tried(self.store.root, entry, serve), codes)
        if not again:
            self._note_broken()
        return None

    def _note_broken(self) -> None:
        """Names the entries whose header cannot be read: nobody can say whether one was looked for."""
        assert self.store is not None
        for broken in self.store.entries():
            if isinstance(broken, Broken):
                self._note(f"{broken.error}: it was left out of the search")

    def _skips(self, entry: Entry) -> bool:
        """Whether an entry ended a process before; it is out of the way then, and a new one is made."""
        assert self.store is not None
        if not is_suspect(self.store.root, entry):
            return False
        reason = "its first call ended a process"
        place = self.store.set_aside(entry, {"reason": reason, "command": self.command})
        moved = " and was set aside" if place is not None else ""
        self._note(f"entry {entry.short} is suspect{moved}: {reason}")
        self._reasons.append(
            Difference(
                "code", f"entry {entry.short}", "a first call that returns", reason, kind="cannot verify"
            )
        )
        return True

    def _took(self, entry: Entry, smallest: int) -> None:
        assert self.store is not None
        self.outcome, self._entry, self._key = "hit", entry, entry.key
        self.smallest = smallest
        self._reasons.clear()
        pieces = entry.header["pieces"]
        self._pieces = PieceCounts(pieces["total"], pieces["distinct"], 0, pieces["total"])
        self._counts["artifacts_loaded"] += len(entry.manifest(RANK).artifacts)
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

    def _compile(
        self, parts: Sequence[Part], check: Context | None, must_publish: bool
    ) -> list[Callable[..., Any]]:
        assert self.store is not None
        traced = self._trace(parts)
        factors = self.plan.with_code(
            {part.prefix: one.code.factor for part, one in zip(parts, traced, strict=True)}
        )
        self._key = factors.key
        with self.store.draft(factors.key) as draft, compiler_folder(draft.scratch) as scratch:
            serve, compiled = self._build(parts, traced, scratch, check)
            with self.phases.phase("publish"), self._kept_apart(must_publish):
                header = entry_header(self.plan, self.report(), self.command)
                description = self._describe() if self._describe is not None else None
                entry = publish(
                    draft, factors, header, compiled, description=description, store_source=self.store_source
                )
                self.outcome, self._entry = "compiled", entry
        return serve

    @contextlib.contextmanager
    def _kept_apart(self, must_publish: bool) -> Iterator[None]:
        """What was compiled is served also where it cannot be published, unless that was the purpose."""
        try:
            yield
        except CacheError as error:
            if must_publish:
                raise
            self._note(f"{error}: compiled and served without the cache")
            self.outcome = "bypass"

    def _in_memory(self, parts: Sequence[Part], check: Context | None) -> list[Callable[..., Any]]:
        traced = self._trace(parts, keyed=False)
        with compiler_folder() as scratch:
            return self._build(parts, traced, scratch, check)[0]

    def _trace(self, parts: Sequence[Part], keyed: bool = True) -> list[TracedPart]:
        with self.phases.phase("trace"):
            # Here and not above: a hit imports neither Dynamo's tracer nor Inductor.
            from graphkiln.core.tracing import trace_part

            traced = [trace_part(part, self.plan, keyed=keyed) for part in parts]
        self.smallest = max(one.smallest for one in traced)
        for part, one in zip(parts, traced, strict=True):
            self._decisions.extend(one.decisions)
            if self.dump is not None:
                self.dump.part(RANK, part.prefix).traced(one.capture, one.code.factor)
        return traced

    def _build(
        self, parts: Sequence[Part], traced: Sequence[TracedPart], scratch: Path, check: Context | None
    ) -> tuple[list[Callable[..., Any]], list[CompiledFiles]]:
        compiled: list[CompiledFiles] = []
        known: dict[tuple[str, tuple[int, int]], SealedArtifact] = {}
        with self.phases.phase("compile"):
            from graphkiln.core.compile.build import build_part

            for part, one in zip(parts, traced, strict=True):
                dump = None if self.dump is None else self.dump.part(RANK, part.prefix)
                ranges = self.plan.settings(one.smallest, scratch, dump)
                built = build_part(
                    part.module, one.capture, part.dynamic, self.plan.compilation.splitting_ops,
                    ranges, known, self.phases.progress.pieces,
                )  # fmt: skip
                compiled.append(CompiledFiles(part.prefix, one, built))
                self._passes += built.passes
        self._pieces = piece_counts([files.built for files in compiled], len(known))
        self._counts["kernels_compiled"] += sum(artifact.kernels for artifact in known.values())
        with self.phases.phase("load"):
            require_cpu("just built", self.plan.target)
            serve = [
                load_part(
                    files.built.wiring,
                    [FreshArtifact(artifact.files) for artifact in files.built.artifacts],
                    part.module,
                    "just built",
                )
                for part, files in zip(parts, compiled, strict=True)
            ]
        if check is not None:
            self._check_numbers(parts, [one.smallest for one in traced], serve, check)
        if not all(one.code.factor for one in traced):
            return [*serve], compiled
        codes = [(one.code.factor, one.code.sources) for one in traced]
        return self._guarded(parts, serve, codes), compiled

    def _guarded(
        self, parts: Sequence[Part], serve: Sequence[Callable[..., Any]], codes: Sequence[Code]
    ) -> list[Callable[..., Any]]:
        if not self.plan.compilation.dynamic_shapes.evaluate_guards:
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
                counts = check_counts(self.plan.ranges(least))
                rows += check_part(compiled, part.module.forward, part.arguments, check, counts).rows
            self._check = CheckReport(tuple(rows))
        for row in rows:
            if not row.ok:
                raise CheckFailed(row.num_tokens, row.max_abs_error, row.tolerance)

    def _why_bypass(self) -> Difference:
        if self.plan.refusal is not None:
            return bypass_difference(self.plan.refusal)
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
            effective=self.plan.effective(),
            reasons=(*self._reasons, *reasons),
            check=self._check,
            counts={**self._began.since(), **self._counts},
            notes=tuple(self._notes),
            passes=self._passes,
            compiled_seconds=None if entry is None else sum(seconds for _, seconds in entry.header["phases"]),
        )

    def record(self, report: StartReport) -> None:
        """Writes one line about this start into the ledger, where that is possible."""
        if self.store is None:
            return
        self.store.record_start(ledger_line(self.plan, report, self.command))


def bypass_difference(refusal: Bypass | NotCanonical) -> Difference:
    if isinstance(refusal, Bypass):
        return Difference(refusal.factor, "not cacheable", None, refusal.reason, kind="cannot verify")
    factor, _, what = refusal.where.partition(".")
    return Difference(factor, "not cacheable", None, f"{what}: {refusal.reason}", kind="cannot verify")
