"""What vLLM would find for an environment: the entries whose env factor it gives, or what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.inspect.catalogue import Catalogue
from graphkiln.cache.inspect.causes import Cause
from graphkiln.cache.inspect.nearest import Near
from graphkiln.cache.layouts.environments import Environment
from graphkiln.cache.layouts.found import ForeignRow
from graphkiln.cache.layouts.vllm.env import LEFT_OUT, with_launch_remedy

DISABLE, AOT, MEGA = "VLLM_DISABLE_COMPILE_CACHE", "VLLM_USE_AOT_COMPILE", "VLLM_USE_MEGA_AOT_ARTIFACT"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_UNSET = "not set"
_REST = (
    "model, configuration, sources and compiler are those of the entry: an environment says nothing of them"
)


@dataclass(frozen=True)
class EnvironmentExplanation:
    """What a start with an environment would find, under the names of the answer about our own entries."""

    outcome: str
    target: str
    root: Path | None
    entries: int = 0
    entry: str | None = None
    key: str | None = None
    lookup: str | None = None
    saves: float | None = None
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    reasons: tuple[Difference, ...] = ()
    nearest: tuple[Near, ...] = ()
    decisions: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _Compared:
    row: ForeignRow
    differing: tuple[Difference, ...]
    unknown: tuple[str, ...]
    assumed: int


def explain_environment(catalogue: Catalogue, given: Environment, limit: int) -> EnvironmentExplanation:
    """Return hit, miss or unknown for an environment, with at most `limit` of the nearest entries."""
    rows = [row for row in catalogue.rows if isinstance(row, ForeignRow) and _env(row) is not None]
    loadable = [row for row in rows if row.health in ("sound", "partial")]
    usual = _usual_values(rows)
    compared = [_compared(row, given, usual) for row in loadable]
    answer = EnvironmentExplanation("miss", given.what, catalogue.root, len(catalogue.rows))
    if _switch(given.values.get(DISABLE, "")):
        told = Difference("env", DISABLE, None, given.values[DISABLE], remedy=f"unset {DISABLE}")
        return replace(answer, reasons=(told,))
    hits = [one for one in compared if not one.differing and not one.unknown]
    perhaps = [one for one in compared if not one.differing and one.unknown]
    if hits or perhaps:
        best = (hits or perhaps)[0]
        return replace(
            answer,
            outcome="hit" if hits else "unknown",
            entry=str(best.row.path),
            key=best.row.key,
            assumed=tuple(_assumed(best, hits or perhaps, given)),
        )
    if catalogue.rows and not rows:
        text = "no entry that is there stores its environment"
        return replace(answer, outcome="unknown", assumed=(text,))
    nearest = sorted(compared, key=lambda one: (_telling(one.differing), len(one.differing)))[:limit]
    return replace(answer, nearest=tuple(map(_near, nearest)), assumed=tuple(_unloadable(rows, given, usual)))


def _compared(row: ForeignRow, given: Environment, usual: Mapping[str, Any]) -> _Compared:
    stored = _env(row) or {}
    differing, unknown, assumed = [], [], 0
    for name, then in sorted(stored.items()):
        if name in given.unknown:
            unknown.append(name)
        elif name in given.values:
            agrees = _agrees(then, given.values[name])
            if agrees is None:
                unknown.append(name)
            elif not agrees:
                differing.append(Difference("env", name, then, given.values[name]))
        elif not _is_default(name, then, given, usual):
            differing.append(Difference("env", name, then, _UNSET))
        elif then not in (None, False, "", 0, []):
            assumed += 1
    return _Compared(row, tuple(map(with_launch_remedy, differing)), tuple(unknown), assumed)


def _agrees(stored: Any, text: str) -> bool | None:
    """Say whether vLLM would make the stored value of a text; None where that cannot be told."""
    if isinstance(stored, bool):
        if text.strip().lower() not in (*_YES, *_NO):
            return None
        return stored is (text.strip().lower() in _YES)
    try:
        if isinstance(stored, int):
            return int(text) == stored
        if isinstance(stored, float):
            return float(text) == stored
    except ValueError:
        return None
    if stored is None:
        return text == ""
    if isinstance(stored, str):
        return text == stored or text.lower() == stored.lower()
    if isinstance(stored, list) and all(isinstance(one, (str, int)) for one in stored):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return True if parts == list(map(str, stored)) else None
    return None


def _is_default(name: str, stored: Any, given: Environment, usual: Mapping[str, Any]) -> bool:
    """Say whether a variable that is not set would have the stored value: its default is not stored.

    What follows from another variable is known; else the value that most entries have counts as the default.
    """
    aot = given.values.get(AOT)
    if name == DISABLE:
        return not stored
    if name == AOT:
        return bool(stored)
    if name == MEGA:
        return bool(stored) is not (aot is not None and not _switch(aot))
    return bool(stored == usual.get(name, stored))


def _usual_values(rows: Sequence[ForeignRow]) -> dict[str, Any]:
    """Return the value that most entries have of each variable, where one has more than any other."""
    counts: dict[str, Counter[str]] = {}
    values: dict[tuple[str, str], Any] = {}
    for row in rows:
        for name, value in (_env(row) or {}).items():
            counts.setdefault(name, Counter())[repr(value)] += 1
            values[name, repr(value)] = value
    usual = {}
    for name, counted in counts.items():
        (best, count), *others = counted.most_common(2)
        # Of two that are as frequent, the one that says nothing is the likelier default.
        if others and others[0][1] == count:
            empty = [text for text in (best, others[0][0]) if not values[name, text]]
            best = empty[0] if empty else best
        usual[name] = values[name, best]
    return usual


def _env(row: ForeignRow) -> Mapping[str, Any] | None:
    factors = row.unit.pieces.known_factors if row.unit.pieces else None
    return factors.env if factors else None


def _switch(text: str) -> bool:
    return text.strip().lower() in _YES


def _telling(found: Sequence[Difference]) -> int:
    return sum(one.relevant for one in found)


def _near(one: _Compared) -> Near:
    row = one.row
    ordered = sorted(one.differing, key=lambda difference: not difference.relevant)
    return Near(row.id, row.key, str(row.path), row.model, row.created, tuple(map(Cause, ordered)))


def _assumed(best: _Compared, all_of_them: Sequence[_Compared], given: Environment) -> list[str]:
    told = [_REST]
    if len(all_of_them) > 1:
        ids = ", ".join(one.row.id for one in all_of_them)
        told.append(f"{len(all_of_them)} entries have this environment, and any of them may be meant: {ids}")
    if best.assumed:
        told.append(f"{best.assumed} variables that are not set here had their defaults when it was made")
    if best.unknown:
        told.append(f"the values of {', '.join(best.unknown)} agree, which cannot be told from here")
    if not given.complete:
        told.append("the image sets no variable beside these")
    strangers = [
        name for name in given.values if name.startswith("VLLM_") and name not in (_env(best.row) or {})
    ]
    heard = [name for name in strangers if LEFT_OUT.fullmatch(name) is None]
    if heard:
        told.append(f"{', '.join(sorted(heard))} is in the environment and in no entry's: not of this vLLM")
    return told


def _unloadable(rows: Sequence[ForeignRow], given: Environment, usual: Mapping[str, Any]) -> list[str]:
    """Return which entries have this environment and hold nothing that a start could load."""
    others = [row for row in rows if row.health not in ("sound", "partial")]
    same = [row for row in others if not _compared(row, given, usual).differing]
    return [f"{row.id} has this environment and is {row.health}: {row.fault}" for row in same]
