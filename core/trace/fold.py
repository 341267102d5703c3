"""Records of equal layers, written once: the layer number becomes `*`, the numbers a list beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from graphkiln.core.trace.records import Record


def fold(records: Iterable[Record]) -> list[Record]:
    """Returns records in which those that differ only in one layer number stand once, with `over`.

    A 30-layer model has 5,000 records and 440 of them are different.
    """
    groups: dict[str, tuple[Record, list[str]]] = {}
    out: list[tuple[str, Record]] = []
    for record in records:
        numbered = _numbered_step(record)
        if numbered is None:
            out.append((json.dumps(record, sort_keys=True), record))
            continue
        index, number = numbered
        path = [*record["path"][:index], ["ditem", ["s", "*"]], *record["path"][index + 1 :]]
        shared = {**record, "path": path}
        text = json.dumps(shared, sort_keys=True)
        groups.setdefault(text, (shared, []))[1].append(number)
    for text, (record, numbers) in groups.items():
        out.append((text, {**record, "over": sorted(set(numbers), key=lambda n: (len(n), n))}))
    return [record for _, record in sorted(out, key=lambda item: item[0])]


def unfold(records: Iterable[Record]) -> list[Record]:
    """Returns the records that `fold` was given, in another order."""
    out: list[Record] = []
    for record in records:
        if "over" not in record:
            out.append(record)
            continue
        plain = {name: value for name, value in record.items() if name != "over"}
        for number in record["over"]:
            path = [
                ["ditem", ["s", number]] if step == ["ditem", ["s", "*"]] else step for step in record["path"]
            ]
            out.append({**plain, "path": path})
    return out


def _numbered_step(record: Record) -> tuple[int, str] | None:
    if "other" in record:
        return None
    path = record["path"]
    for index in range(1, len(path)):
        step = path[index]
        if (
            step[0] == "ditem"
            and step[1][0] == "s"
            and step[1][1].isdigit()
            and path[index - 1] == ["attr", "_modules"]
        ):
            return index, step[1][1]
    return None
