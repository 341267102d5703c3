"""What a start would do, found out without compiling: hit, miss or unknown, and why.

The code factor is known for certain only from a trace. Without one, the functions that an entry
recorded are read again from their sources, and where the entry describes its model, the rest follows
from the files that build it; what was left open is said in `assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from graphkiln.cache.errors import EntryDamaged, NotCanonical
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.traced import code_differences
from graphkiln.cache.inspect.nearest import Near, nearest
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.store import Broken, Store
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import Bypass, LoadRefused
from graphkiln.core.journal import bypass_difference
from graphkiln.core.loading import require_device, restored
from graphkiln.core.parts import BACKBONE
from graphkiln.core.plan import Plan, make_plan
from graphkiln.core.publication import versions
from graphkiln.core.report import Decision
from graphkiln.core.start import key
from graphkiln.core.starting import store_for
from graphkiln.core.stored import RANK, EntryStored
from graphkiln.core.target.cuda import CudaTarget
from graphkiln.core.trace.code import check_source
from graphkiln.core.uncached import mode_none, why_uncached

_LOOKED_AT_SOURCES = (
    "the code is known from sources alone: the functions that each entry recorded were read again, and its "
    "classes, attributes and globals were not looked at"
)


@dataclass(frozen=True)
class Explanation:
    """What a start would do. `entry` is the id of the one that it would hit, or might.

    `reasons` say why it can hit nothing at all (a bypass); `nearest` are entries with what differs;
    `assumed` says what was taken for granted; `saves` are the seconds that compiling that entry took.
    `left_out` names, where there is no hit, damaged entries of which nobody can say what they were for.
    """

    outcome: Literal["hit", "miss", "unknown", "bypass"]
    target: str
    root: Path | None
    lookup: str | None
    key: str | None = None
    entry: str | None = None
    saves: float | None = None
    entries: int = 0
    nearest: tuple[Near, ...] = ()
    reasons: tuple[Difference, ...] = ()
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()


def explain(
    deployment: Deployment,
    config: CompilationConfig | None = None,
    *,
    trace: bool = False,
    cache_root: Path | str | None = None,
    limit: int = 3,
) -> Explanation:
    """Returns what a start of `deployment` would do; `trace` settles what only a trace can tell.

    Compiles nothing and writes nothing. Raises ModelError and CompileError as a start does.
    """
    config = config or CompilationConfig()
    plan = make_plan(deployment, config)
    store = store_for(config, cache_root)
    answer = Explanation(
        "bypass", plan.target.name, store.root.path if store else None, plan.lookup, decisions=plan.decisions
    )
    refused = _never_hits(plan, store)
    if refused is not None:
        return replace(answer, reasons=(refused,))
    assert store is not None
    now: dict[str, Any] = plan.factors.as_json() if plan.factors else {}
    hashes: Mapping[str, str] = plan.factors.hashes if plan.factors else {}
    if trace:
        try:
            report = key(deployment, config)
        except (Bypass, NotCanonical) as error:
            return replace(answer, reasons=(bypass_difference(error),))
        now, hashes = dict(report.factors), report.hashes
        answer = replace(answer, key=report.key, decisions=report.decisions)
    lying = store.entries()
    found = _among([one for one in lying if isinstance(one, Entry)], _Now(plan, now, hashes), answer, limit)
    if found.outcome == "hit":
        return found
    broken = (str(one.error) for one in lying if isinstance(one, Broken))
    return replace(found, left_out=(*found.left_out, *broken))


@dataclass(frozen=True)
class _Now:
    """What a start here would ask for; the code factor among `factors` is None without a trace."""

    plan: Plan
    factors: Mapping[str, Any]
    hashes: Mapping[str, str]

    def code_of(self, entry: Entry) -> list[Difference]:
        """Returns how an entry's code differs from what is here, by the trace or by the sources."""
        then = entry.factors().as_json()["code"]
        if self.factors.get("code") is not None:
            return code_differences(then, self.factors["code"])
        found: list[Difference] = []
        for prefix, factor in then.items():
            sources = entry.read_json(RANK, prefix, "wiring.json")["sources"]
            found += check_source(factor, sources)
        return found


def _among(entries: list[Entry], now: _Now, answer: Explanation, limit: int) -> Explanation:
    """Returns the answer for what lies in the cache."""
    answer = replace(answer, entries=len(entries))
    traced = now.factors.get("code") is not None
    candidates = [entry for entry in entries if entry.lookup == now.plan.lookup]
    open_questions: list[tuple[Entry, str]] = []
    rejected: dict[str, Difference] = {}
    for entry in candidates:
        try:
            reason = _unusable(entry, now.plan)
            if reason is not None:
                rejected[entry.key] = reason
            elif not now.code_of(entry):
                why = "" if traced else _left_open(entry, now.plan)
                if not why:
                    return _would_hit(answer, entry, "hit", ())
                open_questions.append((entry, why))
        except EntryDamaged as damage:
            rejected[entry.key] = _damaged(entry, str(damage))
    if open_questions:
        entry, why = open_questions[0]
        assumed = (
            f"the functions that {entry.short} recorded are unchanged; whether its classes, attributes and "
            f"globals are, only a trace can tell, because {why}",
        )
        return _would_hit(answer, entry, "unknown", assumed)

    def code_of(entry: Entry) -> list[Difference]:
        return [rejected[entry.key]] if entry.key in rejected else now.code_of(entry)

    damages: list[EntryDamaged] = []
    near = nearest(
        entries, now.factors, now.hashes, versions(), code_of, limit, now.plan.label, damages.append
    )
    left_out = tuple(map(str, damages))
    guessed = bool(near) and not traced
    return replace(
        answer,
        outcome="miss",
        nearest=near,
        assumed=(_LOOKED_AT_SOURCES,) if guessed else (),
        left_out=left_out,
    )


def _would_hit(
    answer: Explanation, entry: Entry, outcome: Literal["hit", "unknown"], assumed: tuple[str, ...]
) -> Explanation:
    seconds = sum(seconds for _, seconds in entry.header.get("phases") or ())
    key_known = entry.key if outcome == "hit" else answer.key
    return replace(
        answer, outcome=outcome, key=key_known, entry=entry.short, saves=seconds or None, assumed=assumed
    )


def _never_hits(plan: Plan, store: Store | None) -> Difference | None:
    """Returns why a start can hit nothing, whatever lies in the cache."""
    if not plan.compilation.compiles:
        return mode_none(plan)
    uncached = why_uncached(plan.compilation)
    if uncached is not None:
        return uncached
    if plan.refusal is not None:
        return bypass_difference(plan.refusal)
    if store is None:
        name = "GRAPHKILN_DISABLE_COMPILE_CACHE"
        return Difference("env", name, "0", "1", relevant=False, remedy=f"unset {name}")
    return None


def _unusable(entry: Entry, plan: Plan) -> Difference | None:
    """Returns why a start would not use an entry that has its lookup: this machine, or damage."""
    if not _is_described(plan):
        try:
            require_device(entry.short, plan.target)
        except LoadRefused as refusal:
            return Difference("compiler", f"entry {entry.short}", "usable", refusal.reason)
    # What nothing lists stops no start.
    faults = [fault for fault in entry.verify(RANK) if fault.kind != "extra"]
    return _damaged(entry, f"{faults[0].file}: {faults[0].kind}") if faults else None


def _is_described(plan: Plan) -> bool:
    """Whether a plan is for a device that is not here: what it would load is asked about, and not loaded."""
    return isinstance(plan.target, CudaTarget) and plan.target.described is not None


def _damaged(entry: Entry, what: str) -> Difference:
    remedy = "the next start compiles it again; graphkiln cache verify --repair sets it aside now"
    return Difference("cache", f"entry {entry.short}", "sound", what, remedy=remedy, kind="cannot verify")


def _left_open(entry: Entry, plan: Plan) -> str:
    """Returns why the rest of the code cannot be known without a trace, "" where it can."""
    assert plan.source is not None
    if _is_described(plan):
        return f"{plan.target.name} is not here"
    stored, device = EntryStored(entry), plan.target.torch_device
    served, why = restored(stored, BACKBONE, plan.source, plan.deployment, device)
    return "" if served is not None else why
