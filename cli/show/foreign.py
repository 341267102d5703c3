"""How an entry of another program's cache is shown, and what that program does with what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.causes import row_lines
from graphkiln.cli.show.entry import Shown, path_lines, piece_lines
from graphkiln.cli.show.key import factor_lines, leaves
from graphkiln.cli.show.numbers import age_text, bytes_text, count_text
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style, printable

if TYPE_CHECKING:
    from graphkiln.cache.layouts.found import ForeignAccount, ForeignRow, ForeignVerdict
    from graphkiln.cache.store.reading import Fault


def account_lines(found: ForeignAccount, verdict: ForeignVerdict, style: Style, shown: Shown) -> list[str]:
    """Returns what an entry says about itself, and what is wrong with it."""
    from graphkiln.cache.inspect.account import path_values

    paths = list(path_values(dict(found.factors)))
    return [
        *facts(head_pairs(found, verdict), style),
        *below(fault_lines(verdict.faults, style)),
        *below(factors_lines(found, style, every_value=shown.factors)),
        *below(piece_lines(found.pieces, style)),
        *below(
            [line for piece in found.pieces for line in row_lines([("artifact", piece.artifact)], style)]
            if shown.pieces
            else []
        ),
        *below(path_lines(paths, style, every=shown.factors)),
        *below(facts([("not stored", note) for note in found.notes], style)),
        *below(facts([("note", note) for note in verdict.notes], style)),
        *text_lines(found, shown, style),
    ]


def head_pairs(found: ForeignAccount, verdict: ForeignVerdict) -> list[tuple[str, str]]:
    row = found.row
    faults = len(verdict.faults)
    sound = f"no, {count_text(faults, 'fault')}" if faults else "yes, as far as the layout lets one check"
    where = f" for {row.target}" if row.target else ""
    created = f"{row.created[:19]}Z, {age_text(row.created)}" if row.created else ""
    return [
        ("entry", row.id),
        ("layout", f"{row.layout}, {row.form}"),
        ("model", f"{' '.join(filter(None, (row.model, row.dtype)))}{where}"),
        ("status", status_text(found, verdict)),
        ("sound", sound),
        ("key", row.key),
        ("size", f"{bytes_text(row.size)} in {count_text(row.files, 'file')}"),
        ("created", created),
        ("used", age_text(row.last_used) if row.last_used else ""),
        *found.about,
        ("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
        *(("path", str(folder)) for folder in row.folders or (row.path,)),
    ]


def statuses_of(row: ForeignRow, verdict: ForeignVerdict) -> tuple[str, ...]:
    """Returns all that holds for an entry, its health first, which every byte may tell better than a list."""
    health, *more = row.statuses
    return (verdict.status if health == "sound" else health, *more)


def status_text(found: ForeignAccount, verdict: ForeignVerdict) -> str:
    telling = [name for name in statuses_of(found.row, verdict) if name != "sound"]
    why = found.row.fault or next((f"{fault.file}: {fault.kind}" for fault in verdict.faults), "")
    return (", ".join(telling) or "sound") + (f": {why}" if why else "")


def factors_lines(found: ForeignAccount, style: Style, *, every_value: bool) -> list[str]:
    """Returns the table of factors where the layout has them, else the values that could be recovered."""
    if found.hashes:
        return factor_lines(found.hashes, found.factors, style, every_value=every_value)
    rows = [
        (name, "not stored", count_text(len(list(leaves(value))), "value"))
        for name, value in found.factors.items()
    ]
    lines = table(("factor", "hash", "holds"), rows, style) if rows else []
    for name, value in found.factors.items() if every_value else ():
        lines += below(facts(list(leaves(value)), style), style.bold(name))
    return lines


def fault_lines(faults: Sequence[Fault], style: Style) -> list[str]:
    """Returns each fault in full: the file, what is wrong with it, what its program does about it."""
    lines: list[str] = []
    for fault in faults:
        lines += [style.bold(printable(f"{fault.file}: {fault.kind}"))]
        rows = [("wrong", fault.detail), ("then", getattr(fault, "effect", ""))]
        lines += row_lines([row for row in rows if row[1]] or [("wrong", fault.kind)], style)
    return lines


def faults_lines(verdicts: Sequence[ForeignVerdict], style: Style) -> list[str]:
    """Returns what is wrong, entry by entry, with what follows from it, and what is only told."""
    lines: list[str] = []
    for verdict in verdicts:
        # Litter of an overwritten entry has no fault: it is told by `ls`.
        if verdict.status != "sound":
            lines.append(f"{style.bold(verdict.id)} is {verdict.status}")
            lines += [f"  {line}" for line in fault_lines(verdict.faults, style)]
            lines += [f"  rank_{rank}: missing (another rank is there)" for rank in verdict.missing_ranks]
        lines += [printable(f"{verdict.id}: note: {note}") for note in verdict.notes]
    return lines


def text_lines(found: ForeignAccount, shown: Shown, style: Style) -> list[str]:
    lines: list[str] = []
    texts = [
        *(found.graphs.items() if shown.graphs else ()),
        *(found.sources.items() if shown.source else ()),
    ]
    for name, text in texts:
        body = [printable(line.replace("\t", "    ")) for line in text.splitlines()]
        lines += below(body, style.bold(printable(name)))
    return lines


def account_json(found: ForeignAccount, verdict: ForeignVerdict) -> dict[str, Any]:
    """Returns the same as data, by the names of our own entries where they mean the same."""
    row = found.row
    return {
        "id": row.id,
        "key": row.key,
        "layout": row.layout,
        "form": row.form,
        "path": str(row.path),
        "folders": [str(folder) for folder in row.folders],
        "model": row.model,
        "target": row.target,
        "dtype": row.dtype,
        "bytes": row.size,
        "files": row.files,
        "created": row.created,
        "last_used": row.last_used,
        "status": list(statuses_of(row, verdict)),
        "fault": row.fault,
        "about": dict(found.about),
        "versions": dict(found.versions),
        "hashes": dict(found.hashes),
        "factors": dict(found.factors),
        "pieces": [asdict(piece) for piece in found.pieces],
        "build": dict(found.build),
        "sources": sorted(found.sources),
        "graphs": sorted(found.graphs),
        "not_stored": list(found.notes),
        "faults": [asdict(fault) for fault in verdict.faults],
        "notes": list(verdict.notes),
    }
