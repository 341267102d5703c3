"""How a plan of removal is shown, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.numbers import age_text, bytes_text, count_text
from graphkiln.cli.show.table import below, table
from graphkiln.cli.show.terminal import Style, printable

if TYPE_CHECKING:
    from graphkiln.cache.inspect.catalogue import Row
    from graphkiln.cache.inspect.prune import Plan
    from graphkiln.cache.inspect.removal import Removed


def plan_lines(plan: Plan, unknown: Mapping[str, str], style: Style) -> list[str]:
    """Returns what goes and why, what is kept although a rule names it, and what cannot be told."""
    rows = [
        (
            item.row.id,
            item.row.model,
            bytes_text(item.row.size),
            str(item.row.files),
            used(item.row),
            item.reason,
        )
        for item in plan.doomed
    ]
    rows += [
        (leftover.kind, leftover.path.name, bytes_text(leftover.size), str(leftover.files), "", "left over")
        for leftover in plan.leftovers
    ]
    lines = table(("goes", "model", ">size", ">files", "used", "because"), rows, style) if rows else []
    kept = [printable(f"{item.row.id} is kept: {item.reason}") for item in plan.spared]
    told = [printable(f"{name} is kept: {why}") for name, why in sorted(unknown.items())]
    unmet = [f"{limit} cannot be met with what may go" for limit in plan.unmet]
    notes = [*kept, *told, *unmet]
    return [*lines, *below(notes)] if lines else notes


def used(row: Row) -> str:
    """Returns when an entry was last used; where nobody counts uses that may not be known."""
    return age_text(row.last_used) if row.last_used else "" if row.hits is None else "never"


def plan_text(plan: Plan) -> str:
    """Returns what the plan frees and leaves, as one sentence."""
    count = count_text(len(plan.doomed), "entry", "entries")
    if plan.leftovers:
        count += f" and {count_text(len(plan.leftovers), 'leftover')}"
    return (
        f"{count}: {bytes_text(plan.size)} and {count_text(plan.files, 'file')} freed, "
        f"{bytes_text(plan.kept_size)} and {count_text(plan.kept_files, 'file')} stay"
    )


def removed_lines(done: Removed, grace_s: float) -> list[str]:
    """Returns what was done, a line a thing that was not."""
    lines = [printable(f"{name} was not removed: {why}") for name, why in done.skipped]
    lines += [
        printable(f"{name} is not freed, what is left of it lies in {where}: {why}")
        for name, where, why in done.left
    ]
    text = f"{count_text(len(done.moved), 'thing')} removed"
    if done.waiting:
        minutes = f"{grace_s / 60:g} min" if grace_s >= 60 else f"{grace_s:g} s"
        text += f"; {done.waiting} in the trash until the next removal or compile after {minutes}"
    if done.deleted_files:
        text += f"; {bytes_text(done.deleted_size)} and {count_text(done.deleted_files, 'file')} deleted"
    return [*lines, text]


def plan_json(plan: Plan, unknown: Mapping[str, str], done: Removed | None) -> dict[str, Any]:
    return {
        "remove": [
            {
                "id": item.row.id,
                "key": item.row.key,
                "path": str(item.row.path),
                "bytes": item.row.size,
                "files": item.row.files,
                "reason": item.reason,
            }
            for item in plan.doomed
        ],
        "leftovers": [
            {"kind": item.kind, "path": str(item.path), "bytes": item.size, "files": item.files}
            for item in plan.leftovers
        ],
        "kept": [{"id": item.row.id, "reason": item.reason} for item in plan.spared],
        "unknown": dict(unknown),
        "unmet": list(plan.unmet),
        "bytes": plan.size,
        "files": plan.files,
        "stays": {"bytes": plan.kept_size, "files": plan.kept_files},
        "removed": None if done is None else asdict(done),
    }
