"""How CUDA graphs are shown: the plan, which graph serves a step, and what a capture check found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.capture import capture_lines
from graphkiln.cli.show.numbers import count_text
from graphkiln.cli.show.start import decision_lines, phase_lines
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.core.graphs.report import GraphReport
    from graphkiln.core.graphs.table import DispatchRow
    from graphkiln.core.graphs.traffic import Served


def graph_lines(report: GraphReport, model: str, style: Style) -> list[str]:
    """Returns the plan, the dispatch table, and what was captured or why nothing was."""
    what = "captured" if report.capture else "not captured"
    start = report.start
    pairs = [
        (what, f"{model} for {report.target}"),
        ("because", report.why_not or ""),
        ("mode", mode_text(report.cudagraphs)),
        ("sizes", sizes_text(report.cudagraphs["capture_sizes"])),
        ("graphs", graphs_text(report)),
        ("traffic", traffic_text(report.traffic)),
        ("start", f"{start.outcome}, {start.entry_path or 'no entry'}" if start else ""),
        ("report", str(report.kept or "")),
    ]
    return [
        *facts(pairs, style),
        *below(dispatch_lines(report.dispatch, style)),
        *(capture_lines(report.capture, style, every=True) if report.capture else []),
        *below(phase_lines(report.phases, style) if report.capture else []),
        *below(decision_lines([asdict(decision) for decision in report.decisions], style)),
        *below(list(report.notes)),
    ]


def mode_text(cudagraphs: Mapping[str, Any]) -> str:
    breakable = ", broken at marked calls" if cudagraphs.get("breakable") else ""
    return f"{cudagraphs['mode']}{breakable}"


def graphs_text(report: GraphReport) -> str:
    """Returns how many graphs there are of each mode, in the order of their capture."""
    counts = [f"{len(report.plan.of(mode))} {mode.name}" for mode in report.plan.modes]
    return ", then ".join(counts) + ", each largest first" if counts else ""


def traffic_text(served: Served | None) -> str:
    """Returns how the given traffic falls on the sizes."""
    if served is None:
        return ""
    larger = f", {served.larger:.1%} of them larger than any graph" if served.larger else ""
    return f"{served.steps:g} steps{larger}; {served.padding:.1%} of the tokens run are padding"


def sizes_text(sizes: Sequence[int]) -> str:
    """Returns capture sizes in short: runs of one step are told by their ends."""
    parts = [
        f"{run[0]} to {run[-1]} by {run[1] - run[0]}" if len(run) > 2 else ", ".join(map(str, run))
        for run in runs(sizes)
    ]
    return f"{count_text(len(sizes), 'size')}: {', '.join(parts)}" if sizes else ""


def runs(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yields the sizes in runs of three or more with one step between them; what is left over in pieces."""
    rest = list(sizes)
    while rest:
        end = 2
        while end < len(rest) and rest[end] - rest[end - 1] == rest[1] - rest[0]:
            end += 1
        # Two sizes are no run: the second may begin one.
        end = end if end > 2 else 1
        yield rest[:end]
        rest = rest[end:]


def dispatch_lines(rows: Sequence[DispatchRow], style: Style) -> list[str]:
    """Returns the dispatch rule: rows that pad alike are told as one."""
    cells = [
        cell
        for _, group in groupby(rows, key=lambda row: (row.kind, row.length, row.mode))
        for cell in alike([*group])
    ]
    return table(("step", ">tokens", "graph", "padded to"), cells, style) if cells else []


def alike(rows: Sequence[DispatchRow]) -> Iterator[tuple[str, str, str, str]]:
    """Yields rows of one kind and mode, those whose sizes are one step apart together."""
    kind = rows[0].kind
    name = kind if rows[0].length in (None, 1) else f"{kind} of {rows[0].length}"
    if rows[0].num_tokens is None:
        for row in rows:
            yield name, tokens_text(row.first, row.last), "none", "as it is"
        return
    by_size = {row.num_tokens: row for row in rows if row.num_tokens is not None}
    for run in runs([*by_size]):
        first, last = by_size[run[0]], by_size[run[-1]]
        padded = str(run[0]) if len(run) == 1 else f"the next of {run[0]} to {run[-1]} by {run[1] - run[0]}"
        yield name, tokens_text(first.first, last.last), first.mode, padded


def tokens_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def graph_json(report: GraphReport, model: str) -> dict[str, Any]:
    """Returns the same as data, every graph and every row by itself."""
    from graphkiln.core.graphs.report import descriptors_json

    start = report.start
    return {
        "model": model,
        "target": report.target,
        "captured": report.capture is not None,
        "ok": report.ok,
        "why_not": report.why_not,
        "cudagraphs": dict(report.cudagraphs),
        "descriptors": descriptors_json(report.plan),
        "traffic": None if report.traffic is None else asdict(report.traffic),
        "dispatch": [asdict(row) for row in report.dispatch],
        "capture": report.capture,
        "report": None if report.kept is None else str(report.kept),
        "start": None
        if start is None
        else {
            "outcome": start.outcome,
            "key": start.key,
            "entry": None if start.entry_path is None else str(start.entry_path),
        },
        "phases": [{"name": name, "seconds": seconds} for name, seconds in report.phases],
        "decisions": [asdict(decision) for decision in report.decisions],
        "notes": list(report.notes),
    }
