"""How the entries of a cache are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.numbers import age_text, bytes_text, count_text
from graphkiln.cli.show.table import below, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.cache.store.entries import Entry
    from graphkiln.cache.store.store import Broken

SOUND = "ok"


@dataclass(frozen=True)
class Row:
    """One entry in the list; `fault` says what is wrong where `status` is not ok. A broken one has no key."""

    id: str
    key: str
    model: str
    target: str
    dtype: str
    bytes: int
    created: str
    last_used: str | None
    label: str | None
    pinned: bool
    status: str
    fault: str
    path: str


def row_of(entry: Entry | Broken) -> Row:
    """Returns the row of an entry, from its header alone: no other file is checked for a list."""
    from graphkiln.cache.store.store import Broken

    if isinstance(entry, Broken):
        error = entry.error
        fault = f"{error.file}: {error.fault}" + (f" ({error.detail})" if error.detail else "")
        path = entry.path
        return Row(path.name, "", "", "", "", 0, "", None, None, False, "broken", fault, str(path))
    missing = sorted(set(entry.ranks_expected) - set(entry.ranks()))
    state = entry.state
    return Row(
        id=entry.short,
        key=entry.key,
        model=str(entry.header.get("model", "")),
        target=target_text(entry.header),
        dtype=str(entry.header.get("dtype", "")),
        bytes=entry.total_bytes,
        created=entry.created,
        last_used=state.last_used,
        label=state.label,
        pinned=state.pinned,
        status="incomplete" if missing else SOUND,
        fault=f"no rank {', '.join(missing)}" if missing else "",
        path=str(entry.path),
    )


def target_text(header: Mapping[str, Any]) -> str:
    """Returns the name of the target that a header describes."""
    target = header.get("target")
    return str(target.get("name", "")) if isinstance(target, Mapping) else ""


def rows_lines(rows: Sequence[Row], style: Style) -> list[str]:
    """Returns the table of entries, labels only where there are any, and below it what is wrong."""
    if not rows:
        return []
    titles = ["id", "model", "target", "dtype", ">size", "created", "status"]
    cells = [
        [
            row.id,
            row.model,
            row.target,
            row.dtype,
            bytes_text(row.bytes) if row.key else "",
            age_text(row.created) if row.created else "",
            row.status,
        ]
        for row in rows
    ]
    if any(row.label or row.pinned for row in rows):
        titles.insert(1, "label")
        for row, line in zip(rows, cells, strict=True):
            line.insert(1, (row.label or "") + (" (pinned)" if row.pinned else ""))
    faults = [f"{row.id} is {row.status}: {row.fault}" for row in rows if row.fault]
    return [*table(titles, cells, style), *below(faults)]


def summary_text(rows: Sequence[Row]) -> str:
    total = sum(row.bytes for row in rows)
    unsound = sum(row.status != SOUND for row in rows)
    count = count_text(len(rows), "entry", "entries")
    return f"{count}, {bytes_text(total)}" + (f", {unsound} not usable" if unsound else "")


def rows_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
