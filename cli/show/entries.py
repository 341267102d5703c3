"""How the entries of a cache are listed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.numbers import age_text, bytes_text, count_text
from graphkiln.cli.show.table import below, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.cache.inspect.catalogue import Row

INDENT = "    "
TITLES = (
    "id", "label", "model", "target", "dtype", ">size", ">files", "age", "used", ">hits", "status",
)  # fmt: skip


def target_text(header: Mapping[str, Any]) -> str:
    """Returns the name of the target that a header describes."""
    target = header.get("target")
    return str(target.get("name", "")) if isinstance(target, Mapping) else ""


def rows_lines(rows: Sequence[Row], style: Style) -> list[str]:
    """Returns the list of entries, and below it what is wrong.

    One line an entry where the width allows it, else two: the second says the rest in words.
    """
    if not rows:
        return []
    labels = any(row.label for row in rows)
    cells = [cells_of(row) for row in rows]
    titles = list(TITLES)
    if not labels:
        titles.remove("label")
        cells = [[cell for at, cell in enumerate(line) if at != 1] for line in cells]
    lines = table(titles, cells, Style(color=style.color))
    if style.width is not None and max(map(len, table(titles, cells, Style()))) > style.width:
        lines = two_lines(rows, style, labels=labels)
    faults = [f"{row.id} is {row.health}: {row.fault}" for row in rows if row.fault]
    return [*lines, *below(faults)]


def cells_of(row: Row) -> list[str]:
    known = bool(row.key)
    return [
        row.id,
        row.label or "",
        row.model,
        row.target,
        row.dtype,
        bytes_text(row.size),
        str(row.files),
        age(row.created),
        age(row.last_used or ""),
        str(row.hits) if known and row.hits is not None else "",
        row.status,
    ]


def age(then: str) -> str:
    return age_text(then).removesuffix(" ago") if then else ""


def two_lines(rows: Sequence[Row], style: Style, *, labels: bool) -> list[str]:
    titles = ["id", "status", *(["label"] if labels else []), "model"]
    heads = table(
        titles,
        [[row.id, row.status, *([row.label or ""] if labels else []), row.model] for row in rows],
        # Unlimited, so that a row is a line and the second one can stand under it.
        Style(color=style.color),
    )
    lines = heads[:1]
    room = max((style.width or 0) - len(INDENT), 20)
    for row, head in zip(rows, heads[1:], strict=True):
        rest = textwrap.wrap(rest_text(row), room, break_on_hyphens=False, break_long_words=False)
        lines += [head, *(style.dim(INDENT + line) for line in rest)]
    return lines


def rest_text(row: Row) -> str:
    """Returns what the first line of a row does not say."""
    used = f"used {age_text(row.last_used)}" if row.last_used else "never used"
    counted = [used] if row.hits is None and row.last_used else []
    if row.hits is not None:
        counted = [f"{used}, {count_text(row.hits, 'hit')}"]
    parts = [
        " ".join(filter(None, (row.target, row.dtype))),
        f"{bytes_text(row.size)} in {count_text(row.files, 'file')}",
        *([age_text(row.created), *counted] if row.key else []),
    ]
    return ", ".join(part for part in parts if part)


def summary_text(rows: Sequence[Row], shown: str = "") -> str:
    """Returns how many entries there are and how large; `shown` says of how many."""
    total = sum(row.size for row in rows)
    unsound = sum(row.health != "sound" for row in rows)
    count = count_text(len(rows), "entry", "entries") if not shown else f"{len(rows)}{shown} entries"
    return f"{count}, {bytes_text(total)}" + (f", {unsound} not sound" if unsound else "")


def rows_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "id": row.id,
            "key": row.key,
            "lookup": row.lookup,
            "label": row.label,
            "pinned": row.pinned,
            "model": row.model,
            "target": row.target,
            "dtype": row.dtype,
            "bytes": row.size,
            "files": row.files,
            "created": row.created,
            "last_used": row.last_used,
            "hits": row.hits,
            "status": list(row.statuses),
            "fault": row.fault,
            "path": str(row.path),
        }
        for row in rows
    ]
