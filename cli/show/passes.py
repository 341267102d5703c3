"""How passes are shown: what each changed, in all and piece by piece, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphkiln.cli.show.table import table
from graphkiln.cli.show.terminal import Style

PIECES_SHOWN = 12


def pass_lines(pieces: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns the table of passes, one row each in the order in which they ran; `pieces` as stored."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for piece in pieces:
        for run in piece["passes"]:
            runs.setdefault(run["name"], []).append(run)
    rows = [
        (name, total_text(found), f"{sum(run['seconds'] for run in found) * 1000:.1f}", each_text(found))
        for name, found in runs.items()
    ]
    return table(("pass", ">changed", ">ms", "piece by piece"), rows, style) if rows else []


def total_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns how many places a pass changed, nothing where it does not say."""
    counts = [run["matches"] for run in runs]
    return "" if None in counts else str(sum(counts))


def each_text(runs: Sequence[Mapping[str, Any]]) -> str:
    counts = ["?" if run["matches"] is None else str(run["matches"]) for run in runs]
    more = [f"and {len(counts) - PIECES_SHOWN} more"] if len(counts) > PIECES_SHOWN else []
    return " ".join(counts[:PIECES_SHOWN] + more)
