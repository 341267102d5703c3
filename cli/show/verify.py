"""How the verdicts on entries are shown, and what was set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.numbers import age_text, bytes_text, count_text
from graphkiln.cli.show.table import table
from graphkiln.cli.show.terminal import Style, printable

if TYPE_CHECKING:
    from graphkiln.cache.inspect.repair import Repaired, SetAside
    from graphkiln.cache.inspect.verify import Verdict


def verdicts_lines(
    verdicts: Sequence[Verdict], concerns: Sequence[str], repaired: Sequence[Repaired], style: Style
) -> list[str]:
    """Returns what is wrong, entry by entry, what may be trouble around them, and what was set aside."""
    lines: list[str] = []
    for verdict in verdicts:
        if verdict.status == "sound":
            continue
        lines.append(f"{style.bold(verdict.id)} is {verdict.status}")
        for fault in verdict.faults:
            detail = f" ({fault.detail})" if fault.detail else ""
            lines.append(printable(f"  {fault.file}: {fault.kind}{detail}"))
        lines += [f"  rank_{rank}: missing (an expected rank)" for rank in verdict.missing_ranks]
    moves = [moved_text(moved) for moved in repaired]
    around = [f"around the cache: {text}" for text in concerns]
    return [*lines, *moves, *around]


def moved_text(moved: Repaired) -> str:
    what = f"{moved.file} of {moved.id}" if moved.file else moved.id
    if moved.written:
        return printable(f"{what} was written again")
    return printable(f"{what} was set aside: {moved.to}" if moved.to else f"{what} stays: {moved.why}")


def verdicts_text(verdicts: Sequence[Verdict]) -> str:
    """Returns the summary: how many entries, files and bytes, and how many are not sound."""
    size, files = sum(verdict.size for verdict in verdicts), sum(verdict.files for verdict in verdicts)
    unsound = sum(verdict.status != "sound" for verdict in verdicts)
    count = count_text(len(verdicts), "entry", "entries")
    ends = f"{unsound} not sound" if unsound else "all sound" if verdicts else "nothing to verify"
    return f"{count}, {count_text(files, 'file')}, {bytes_text(size)}: {ends}"


def smoke_lines(smoked: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Returns a line a smoke call."""
    words = {True: "was called", False: "failed", None: "was not called"}
    return [
        printable(f"{name} {words[result['ok']]}: {result['detail']}")  # type: ignore[index]
        for name, result in smoked.items()
    ]


def verdicts_json(
    verdicts: Sequence[Verdict],
    concerns: Sequence[str],
    repaired: Sequence[Repaired],
    smoked: Mapping[str, Mapping[str, object]],
) -> dict[str, Any]:
    return {
        "sound": all(verdict.status == "sound" for verdict in verdicts),
        "entries": [
            {
                "id": verdict.id,
                "path": str(verdict.path),
                "status": verdict.status,
                "bytes": verdict.size,
                "files": verdict.files,
                "faults": [asdict(fault) for fault in verdict.faults],
                "missing_ranks": list(verdict.missing_ranks),
                "smoke": smoked.get(verdict.id),
            }
            for verdict in verdicts
        ],
        "concerns": list(concerns),
        "set_aside": [asdict(moved) for moved in repaired],
    }


def quarantine_lines(items: Sequence[SetAside], style: Style) -> list[str]:
    """Returns the table of what was set aside."""
    rows = [
        (
            item.name,
            "entry" if item.is_entry else item.moved,
            bytes_text(item.size),
            age_text(item.at) if item.at else "",
            item.why,
        )
        for item in items
    ]
    return table(("name", "what", ">size", "when", "because"), rows, style) if rows else []


def quarantine_json(items: Sequence[SetAside]) -> list[dict[str, Any]]:
    return [asdict(item) for item in items]
