"""How the comparison of two entries is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.causes import DIGEST, cause_lines, causes_json, pair_texts
from graphkiln.cli.show.numbers import age_text, bytes_text, count_text
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style, printable

if TYPE_CHECKING:
    from graphkiln.cache.factors.difference import Difference
    from graphkiln.cache.inspect.diff import EntryDiff, PieceRow, Side
    from graphkiln.cache.inspect.pieces import Piece
    from graphkiln.cache.inspect.texts import TextDiff

LINES_SHOWN = 20


def diff_lines(found: EntryDiff, style: Style, *, every: bool) -> list[str]:
    """Returns the comparison: the verdict, the causes, then what became of them; `every` cuts nothing."""
    changed = [row for row in found.pieces if row.state != "same"]
    other_build = found.verdict == "same key, different build"
    return [
        *facts(
            [("A", side_text(found.a)), ("B", side_text(found.b)), (found.verdict, summary(found))], style
        ),
        *below(factor_lines(found, style)),
        *below(cause_lines(found.causes, style, names=("A", "B"), aim="as in A", every=every)),
        *below(field_lines("asked", found.asked, style)),
        *below(field_lines("became", found.became, style)),
        *text_lines(found.modules, style, every=every),
        *text_lines(found.graphs, style, every=every),
        *text_lines(found.generated, style, every=every),
        *below(piece_lines(found.pieces if every else changed, style)),
        *below(field_lines("build", found.build, style) if other_build or every else []),
        *below(facts([("note", note) for note in found.notes], style)),
        *below(captured_lines(found.captured, style, every=every)),
    ]


def summary(found: EntryDiff) -> str:
    if found.verdict == "unknown":
        return "what would have to be compared is not stored"
    if found.verdict == "same":
        built = bool(found.pieces) or not found.notes
        return "every factor looked at" + (", and the build" if built else "")
    if not found.causes:
        return f"the compilers chose otherwise: {count_text(len(found.build), 'difference')}"
    causes = count_text(len(found.causes), "cause")
    follows = sum(len(cause.consequences) for cause in found.causes)
    return causes + (f", and {count_text(follows, 'difference')} that follow" if follows else "")


def side_text(side: Side) -> str:
    build = f", build {side.build_digest[:10]}" if side.build_digest else ""
    return f"{side.id}  {side.model}, {age_text(side.created)}{build}"


def factor_lines(found: EntryDiff, style: Style) -> list[str]:
    counts = {name: 0 for name in found.same}
    for cause in found.causes:
        for one in (cause.difference, *cause.consequences):
            if one.factor in counts:
                counts[one.factor] += 1
    rows = [
        (
            name,
            "not stored"
            if same is None
            else "same"
            if same
            else f"different, {count_text(counts[name], 'value')}",
        )
        for name, same in found.same.items()
    ]
    return table(("factor", ""), rows, style)


def field_lines(title: str, found: Sequence[Difference], style: Style) -> list[str]:
    rows = [
        (DIGEST.sub(lambda match: match[0][:10], one.name), *pair_texts(one.then, one.now)) for one in found
    ]
    return table((title, "A", "B"), rows, style) if rows else []


def captured_lines(found: Sequence[Difference], style: Style, *, every: bool) -> list[str]:
    """Returns what the capture checks differ in; the time of each step only where every line is asked for."""
    shown = [one for one in found if every or not one.name.startswith("ms.")]
    more = len(found) - len(shown)
    return [
        *field_lines("captured", shown, style),
        *([f"and the time of {count_text(more, 'step')}, with --all"] if more else []),
    ]


def text_lines(diffs: Iterable[TextDiff], style: Style, *, every: bool) -> list[str]:
    """Returns unified diffs, their beginnings where not every line is asked for."""
    lines: list[str] = []
    for one in diffs:
        shown = list(one.lines if every else one.lines[:LINES_SHOWN])
        more = len(one.lines) - len(shown)
        while shown and not shown[-1].strip():
            shown.pop()
        width = None if every else style.width
        lines += below(
            [
                *([f"{one.name}: {one.why}"] if one.why else []),
                *(within(printable(line.replace("\t", "    ")), width) for line in shown),
                *([f"and {count_text(more, 'line')} more, with --all"] if more else []),
            ]
        )
    return lines


def within(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: max(width - 3, 0)] + "..."


def piece_lines(rows: Sequence[PieceRow], style: Style) -> list[str]:
    cells = [(row.state, *piece_texts(row)) for row in rows]
    return table(("piece", "A", "B"), cells, style) if cells else []


def piece_texts(row: PieceRow) -> tuple[str, str]:
    """Returns both sides of a row; the range of tokens only where it is not the same."""
    ranges = not (row.a and row.b and row.a.range == row.b.range)
    return piece_text(row.a, ranges=ranges), piece_text(row.b, ranges=ranges)


def piece_text(piece: Piece | None, *, ranges: bool) -> str:
    if piece is None:
        return ""
    tokens = f", {'..'.join(map(str, piece.range))}" if ranges else ""
    # A foreign tree names no uses, and what was generated says more than where it is used.
    name = piece.fingerprint if piece.uses else next(iter(piece.sources), "")
    uses = f", {len(piece.uses)}x" if piece.uses else ""
    return f"{piece.number} {name[:10]}{uses}{tokens}, {bytes_text(piece.size)}"


def diff_json(found: EntryDiff) -> dict[str, Any]:
    """Returns the comparison as data."""
    return {
        "a": asdict(found.a),
        "b": asdict(found.b),
        "verdict": found.verdict,
        "same": dict(found.same),
        "causes": causes_json(found.causes),
        "asked": [asdict(one) for one in found.asked],
        "became": [asdict(one) for one in found.became],
        "code": [asdict(one) for one in found.modules],
        "graphs": [asdict(one) for one in found.graphs],
        "generated": [asdict(one) for one in found.generated],
        "pieces": [asdict(row) for row in found.pieces],
        "build": [asdict(one) for one in found.build],
        "notes": list(found.notes),
        "captured": [asdict(one) for one in found.captured],
    }
