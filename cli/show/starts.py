"""How the ledger of starts is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from graphkiln.cli.show.numbers import age_text, count_text, seconds_text
from graphkiln.cli.show.table import GAP, lines_of_row
from graphkiln.cli.show.terminal import Style, printable


def starts_lines(starts: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns each start on a line, and indented below it where the seconds went and why it was no hit."""
    lines = []
    for start in starts:
        phases = pairs_of(start.get("phases"))
        key = str(start.get("key") or "no key")[:10]
        where = f"pid {start.get('pid', '?')} on {start.get('host', '?')}"
        head = [
            style.bold(str(start["outcome"]).ljust(8)),
            key.ljust(10),
            f"{seconds_text(sum(seconds for _, seconds in phases))} s".rjust(9),
            str(start.get("command", "")),
            str(start.get("model", "")),
        ]
        lines.append(GAP.join(printable_but_bold(part, style) for part in head).rstrip())
        spent = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in phases if seconds >= 0.005)
        more = [f"{age_text(str(start.get('at', '')))}, {where}", spent, *reasons_of(start)]
        for text in filter(None, more):
            lines += lines_of_row(["", printable(text)], [0, 0], [False, False], style)
    return lines


def printable_but_bold(text: str, style: Style) -> str:
    return text if style.color and text.startswith("\x1b[1m") else printable(text)


def reasons_of(start: Mapping[str, Any]) -> list[str]:
    """Returns why a start was no hit, each reason as a line."""
    reasons = start.get("reasons")
    told = [
        reason for reason in (reasons if isinstance(reasons, list) else []) if isinstance(reason, Mapping)
    ]
    return [f"{reason.get('factor')} {reason.get('name')}{change_text(reason)}" for reason in told]


def change_text(reason: Mapping[str, Any]) -> str:
    """Returns both values of a reason, which the ledger stores as text, or the one that there is."""
    then, now = (str(reason.get(name, "None")) for name in ("then", "now"))
    if then == "None":
        return "" if now == "None" else f": {now}"
    return f": {then} -> {now}"


def starts_text(starts: Sequence[Mapping[str, Any]], limit: int) -> str:
    """Returns how many of each outcome there are."""
    counts = Counter(str(start["outcome"]) for start in starts)
    parts = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    shown = f", the newest {limit} shown" if len(starts) > limit else ""
    return f"{count_text(len(starts), 'start')}" + (f": {parts}" if parts else "") + shown


def pairs_of(phases: Any) -> list[tuple[str, float]]:
    """Returns stored phases as pairs; a ledger line may hold anything."""
    pairs = phases if isinstance(phases, list) else []
    return [
        (str(pair[0]), float(pair[1]))
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], (int, float))
    ]
