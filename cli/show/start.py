"""How a start is shown: what became of it, what it did, and where the time went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.capture import capture_lines
from graphkiln.cli.show.numbers import bytes_text, seconds_text
from graphkiln.cli.show.passes import pass_lines
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.cache.factors.difference import Difference
    from graphkiln.core.report import CheckReport, StartReport


def start_lines(report: StartReport, model: str, style: Style) -> list[str]:
    """Returns the table of one start: facts, phases that add up to its wall time, check, decisions."""
    cold = report.compiled_seconds if report.outcome == "hit" else None
    pairs = [
        (report.outcome, f"{model} for {report.target}"),
        ("entry", str(report.entry_path or "")),
        ("aot", str(report.aot or "")),
        ("key", report.key or ""),
        ("lookup", "" if report.key else report.lookup or ""),
        ("size", bytes_text(report.entry_bytes) if report.entry_bytes else ""),
        ("pieces", pieces_text(report)),
        ("did", counts_text(report.counts)),
        ("check", "not here" if report.emulated and report.outcome == "compiled" else ""),
        ("assurance", "emulated" if report.emulated and report.outcome == "hit" else ""),
        ("cold", f"{seconds_text(cold)} s when it was compiled" if cold else ""),
    ]
    return [
        *facts(pairs, style),
        *below(reason_lines(report, style), style.bold("why it is no hit")),
        *below(phase_lines(report.phases, style)),
        *below(pass_lines(report.passes, style)),
        *below(check_lines(report.check, style)),
        *(capture_lines(report.capture, style, every=False) if report.capture else []),
        *below(decision_lines([asdict(decision) for decision in report.decisions], style)),
        *below(list(report.notes)),
    ]


def with_import(report: StartReport, seconds: float) -> StartReport:
    """Returns the report with the time before the start as its first phase: a process imports torch too."""
    return replace(report, phases=(("import", seconds), *report.phases))


def pieces_text(report: StartReport) -> str:
    pieces = report.pieces
    if not pieces.total:
        return ""
    return (
        f"{pieces.total} total, {pieces.distinct} distinct, "
        f"{pieces.compiled} compiled, {pieces.reused} reused"
    )


def counts_text(counts: Mapping[str, int]) -> str:
    """Returns what a start did as counts, zeros included: a hit says that it compiled nothing."""
    return ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())


def phase_lines(phases: Sequence[tuple[str, float]], style: Style) -> list[str]:
    """Returns the table of phases; the last row is their sum, the wall time."""
    rows = [(name, seconds_text(seconds)) for name, seconds in phases]
    if not rows:
        return []
    wall = sum(seconds for _, seconds in phases)
    return table(("phase", ">seconds"), [*rows, ("wall", seconds_text(wall))], style)


def check_lines(check: CheckReport | None, style: Style) -> list[str]:
    if check is None:
        return []
    rows = [
        (str(row.num_tokens), f"{row.max_abs_error:.2e}", f"{row.tolerance:.2e}", "yes" if row.ok else "no")
        for row in check.rows
    ]
    return table((">tokens", ">largest error", ">allowed", "equals eager"), rows, style)


def decision_lines(decisions: Iterable[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns the table of what became something else than was asked, and why; headers store it as data."""
    rows = [
        (row["field"], value_text(row["asked"]), value_text(row["got"]), row["reason"]) for row in decisions
    ]
    return table(("decided", "asked", "got", "because"), rows, style) if rows else []


def reason_lines(report: StartReport, style: Style) -> list[str]:
    """Returns why a start was no hit."""
    if report.outcome == "miss" and not report.reasons:
        return ["no entry has this lookup"]
    return difference_lines(report.reasons, style)


def difference_lines(reasons: Iterable[Difference], style: Style) -> list[str]:
    """Returns each named difference: the factor, the fact, both values, and what removes it."""
    rows = [
        (
            row.factor,
            row.name,
            f"{row.kind}: {value_text(row.then)} -> {value_text(row.now)}"
            + ("" if row.relevant else ", cannot change generated code")
            + (f"; {row.remedy}" if row.remedy else ""),
        )
        for row in reasons
    ]
    return table(("factor", "name", "difference"), rows, style) if rows else []


def value_text(value: object) -> str:
    """Returns a value as a person reads it; a digest is shortened."""
    if value is None:
        return "none"
    text = str(value)
    is_digest = len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
    return text[:10] if is_digest else text


def check_json(check: CheckReport) -> dict[str, Any]:
    return {"ok": check.ok, "rows": [{**asdict(row), "ok": row.ok} for row in check.rows]}


def start_json(report: StartReport, model: str) -> dict[str, Any]:
    """Returns the same facts as data; seconds are not rounded."""
    return {
        "model": model,
        "target": report.target,
        "outcome": report.outcome,
        "key": report.key,
        "lookup": report.lookup,
        "entry": None if report.entry_path is None else str(report.entry_path),
        "entry_bytes": report.entry_bytes,
        "aot": None if report.aot is None else str(report.aot),
        "pieces": asdict(report.pieces),
        "counts": dict(report.counts),
        "phases": [{"name": name, "seconds": seconds} for name, seconds in report.phases],
        "wall_seconds": report.seconds,
        "compiled_seconds": report.compiled_seconds,
        "passes": [dict(piece) for piece in report.passes],
        "check": None if report.check is None else check_json(report.check),
        "capture": report.capture,
        "assurance": "emulated" if report.emulated else None,
        "decisions": [asdict(decision) for decision in report.decisions],
        "effective": dict(report.effective),
        "reasons": [asdict(reason) for reason in report.reasons],
        "notes": list(report.notes),
    }
