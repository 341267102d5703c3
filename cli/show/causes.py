"""How differences are shown: each cause with both values and what to type, and what follows from it."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.terminal import Style, printable

if TYPE_CHECKING:
    from graphkiln.cache.factors.difference import Difference
    from graphkiln.cache.inspect.causes import Cause

LONGEST_VALUE = 60
DIGEST = re.compile(r"[0-9a-f]{64}")
INDENT = "   "


def cause_lines(
    causes: Sequence[Cause], style: Style, *, names: tuple[str, str], aim: str, every: bool = False
) -> list[str]:
    """Returns a numbered block for each cause.

    `names` are those of the two sides, `aim` is what the remedy is for. With `every` each consequence
    is a line; without it they are counted by kind.
    """
    lines: list[str] = []
    for number, cause in enumerate(causes, start=1):
        one = cause.difference
        then, now = pair_texts(one.then, one.now)
        effect = (
            "can change generated code" if one.relevant else "cannot change generated code, but is in the key"
        )
        head = f"{number}. {qualified(one)}"
        rows = [*value_rows(one, then, now, names), ("", effect)]
        if one.remedy:
            rows.append((aim, one.remedy))
        if cause.consequences:
            rows.append(("follows", follows_text(cause.consequences)))
        lines += [style.bold(printable(head)), *row_lines(rows, style)]
        if every:
            lines += [f"{INDENT}  {printable(consequence_text(row))}" for row in cause.consequences]
    return lines


def value_rows(one: Difference, then: str, now: str, names: tuple[str, str]) -> list[tuple[str, str]]:
    if one.kind == "cannot verify" and one.then is None:
        return [(one.kind, now)]
    missing = "not there"
    return [
        (names[0], missing if one.kind == "added" else then),
        (names[1], missing if one.kind == "removed" else now),
    ]


def row_lines(rows: Sequence[tuple[str, str]], style: Style) -> list[str]:
    """Returns indented names and values, the values in one column; nothing is cut off."""
    width = max(len(name) for name, _ in rows)
    lines: list[str] = []
    for name, value in rows:
        start = f"{INDENT}{name:<{width}}  "
        room = None if style.width is None else max(style.width - len(start), 20)
        wrapped = wrap(printable(value), room)
        lines += [start + wrapped[0], *(" " * len(start) + line for line in wrapped[1:])]
    return lines


def wrap(text: str, room: int | None) -> list[str]:
    if room is None or len(text) <= room:
        return [text]
    return textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]


def qualified(one: Difference) -> str:
    """Returns the name of a fact with its factor, as a filter takes it; code names say what they are."""
    return f"{one.factor}: {one.name}" if one.factor in ("code", "build") else f"{one.factor}.{one.name}"


def pair_texts(then: Any, now: Any) -> tuple[str, str]:
    """Returns two values as a person reads them, told apart: 1, 1.0, True and "1" never look alike."""
    one, other = value_text(then), value_text(now)
    if one == other:
        one, other = (f"{json.dumps(value, default=list)} ({type(value).__name__})" for value in (then, now))
    if len(one) > LONGEST_VALUE and len(other) > LONGEST_VALUE:
        start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
        one, other = around(one, start), around(other, start)
    return short(one), short(other)


def value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    nested = isinstance(value, (list, tuple, Mapping))
    text = json.dumps(value, default=list) if nested else str(value)
    return DIGEST.sub(lambda match: match[0][:10], text) or '""'


def around(text: str, at: int) -> str:
    """Returns the text from shortly before a place on, for the difference stands there."""
    begin = max(at - LONGEST_VALUE // 2, 0)
    return ("..." if begin else "") + text[begin:]


def short(text: str) -> str:
    most = LONGEST_VALUE * 2
    return text if len(text) <= most else f"{text[:most]}..."


def follows_text(found: Iterable[Difference]) -> str:
    """Returns consequences counted by what they are: 39 parameter dtypes, 3 pieces."""
    from graphkiln.cache.inspect.causes import topic_of

    counts: Counter[str] = Counter()
    for one in found:
        topic = topic_of(one)
        kind = topic.partition(".")[2]
        if topic.startswith("build."):
            kind = kind.split()[0] if kind.startswith(("piece ", "graph ")) else kind
        elif one.factor != "code":
            kind = "field of the model" if kind.startswith("model.") else topic
        counts[kind] += 1
    return ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in counts.items())


def consequence_text(one: Difference) -> str:
    then, now = pair_texts(one.then, one.now)
    return f"{qualified(one)}: {then} -> {now}"


def causes_json(causes: Iterable[Cause]) -> list[dict[str, Any]]:
    """Returns each cause as data, its consequences inside it."""
    return [
        {**asdict(cause.difference), "consequences": [asdict(one) for one in cause.consequences]}
        for cause in causes
    ]
