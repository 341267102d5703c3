"""Aligned columns of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from graphkiln.cli.show.terminal import Style, printable

GAP = "  "


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], style: Style) -> list[str]:
    """Returns the lines of a table; a title that starts with `>` makes its column flush right.

    Nothing is cut off: where the width is limited, the last column goes on in the next lines.
    """
    head = [title.removeprefix(">") for title in titles]
    body = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
    right = [title.startswith(">") for title in titles]
    lines = [style.bold(line) for line in lines_of_row(head, widths, right, style)]
    for row in body:
        lines += lines_of_row(row, widths, right, style)
    return lines


def facts(pairs: Iterable[tuple[str, str]], style: Style) -> list[str]:
    """Returns one line a name and value, the values aligned; empty values are left out."""
    kept = [(printable(name), printable(value)) for name, value in pairs if value]
    widths = [max((len(name) for name, _ in kept), default=0), 0]
    lines: list[str] = []
    for name, value in kept:
        first, *more = lines_of_row([name, value], widths, [False, False], style)
        lines += [style.bold(first[: len(name)]) + first[len(name) :], *more]
    return lines


def lines_of_row(row: Sequence[str], widths: Sequence[int], right: Sequence[bool], style: Style) -> list[str]:
    *cells, last = [
        cell.rjust(width) if flush else cell.ljust(width)
        for cell, width, flush in zip(row, widths, right, strict=True)
    ]
    start = "".join(cell + GAP for cell in cells)
    last = last if right[-1] else last.rstrip()
    room = None if style.width is None else style.width - len(start)
    if room is None or len(last) <= room or right[-1]:
        return [(start + last).rstrip()]
    wrapped = textwrap.wrap(last, max(room, 20), break_on_hyphens=False, break_long_words=False) or [""]
    return [start + wrapped[0], *(" " * len(start) + line for line in wrapped[1:])]


def below(lines: list[str], title: str = "") -> list[str]:
    """Returns the lines under a blank line and a title, or nothing where there are none."""
    return ["", *([title] if title else []), *lines] if lines else []
