"""What to remove from a cache: a plan made from a scan, that knows what it frees before anything happens.

Any rule that names an entry dooms it; filters narrow what the rules look at. Limits come last and take
the entries that were used longest ago. Pins and labels are kept whatever the rules say, and so is a folder
that holds a file which graphkiln did not write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from graphkiln.cache.inspect.catalogue import Catalogue, Row
from graphkiln.cache.inspect.filters import seconds_since, select


@dataclass(frozen=True)
class Rules:
    """What to remove: times in seconds, sizes in bytes; `stale` maps an entry's id to why it is no hit."""

    older_than: float | None = None
    unused_since: float | None = None
    max_size: int | None = None
    max_files: int | None = None
    min_free: int | None = None
    keep_last: int | None = None
    superseded: bool = False
    broken: bool = False
    # Of a foreign tree: what no start can load.
    litter: bool = False
    stale: Mapping[str, str] = field(default_factory=dict)
    filters: tuple[str, ...] = ()
    # A factor was named by --stale, whether or not any entry is.
    by_stale: bool = False

    @property
    def by_filter_alone(self) -> bool:
        """Whether the filters are the only rule: then they doom what they select."""
        others = (
            self.older_than, self.unused_since, self.max_size, self.max_files, self.min_free, self.keep_last,
        )  # fmt: skip
        flags = self.superseded or self.broken or self.litter or self.by_stale or bool(self.stale)
        return bool(self.filters) and not flags and all(value is None for value in others)

    @property
    def empty(self) -> bool:
        """Whether nothing was asked for."""
        return not self.filters and self == Rules()


@dataclass(frozen=True)
class Doomed:
    """An entry to remove, and why."""

    row: Row
    reason: str


@dataclass(frozen=True)
class Spared:
    """An entry that the rules name and that is kept all the same, and why."""

    row: Row
    reason: str


@dataclass(frozen=True)
class Leftover:
    """A folder beside the entries: something set aside, or the draft of a process that died."""

    kind: str
    path: Path
    size: int
    files: int


@dataclass(frozen=True)
class Plan:
    """What is removed, what is spared, what stays, and which limit cannot be met."""

    doomed: tuple[Doomed, ...] = ()
    spared: tuple[Spared, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    kept_size: int = 0
    kept_files: int = 0
    unmet: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that are freed."""
        return sum(item.row.size for item in self.doomed) + sum(item.size for item in self.leftovers)

    @property
    def files(self) -> int:
        """Files that are freed."""
        return sum(item.row.files for item in self.doomed) + sum(item.files for item in self.leftovers)


def make_plan(
    catalogue: Catalogue,
    rules: Rules,
    *,
    leftovers: Sequence[Leftover] = (),
    free_bytes: int = 0,
    now: datetime | None = None,
) -> Plan:
    """Return what the rules remove; `free_bytes` is what the disk has free. `BadFilter` for a bad filter."""
    moment = now or datetime.now(UTC)
    rows = select(catalogue.rows, rules.filters, moment)
    reasons = dict(_named(rows, rules, moment))
    kept = {row.path: reason for row in rows if (reason := row.spared)}
    doomed = [row for row in rows if row.path in reasons and row.path not in kept]
    rest = [row for row in rows if row.path not in reasons and row.path not in kept]
    freed = sum(row.size for row in doomed) + sum(item.size for item in leftovers)
    over, unmet = _over_limit(rows, doomed, rest, rules, free_bytes + freed)
    for row, reason in over:
        doomed.append(row)
        reasons[row.path] = reason
    gone = {row.path for row in doomed}
    stays = [row for row in catalogue.rows if row.path not in gone]
    return Plan(
        tuple(Doomed(row, reasons[row.path] + row.doubt) for row in doomed),
        tuple(Spared(row, kept[row.path]) for row in rows if row.path in kept and row.path in reasons),
        tuple(leftovers),
        sum(row.size for row in stays),
        sum(row.files for row in stays),
        tuple(unmet),
    )


def _named(rows: Sequence[Row], rules: Rules, now: datetime) -> Iterable[tuple[Path, str]]:
    """Yield what a rule names and why; an age that is not known is no age."""
    surplus = _surplus(rows, rules.keep_last)
    for row in rows:
        if reason := _reason(row, rules, surplus, now):
            yield row.path, reason


def _reason(row: Row, rules: Rules, surplus: set[Path], now: datetime) -> str:
    age = seconds_since(row.created, now)
    unused = seconds_since(row.idle_since, now)
    if rules.broken and row.health == "broken":
        return f"broken: {row.fault}"
    if rules.litter and row.health == "litter":
        return f"litter: {row.fault}"
    if row.id in rules.stale:
        return rules.stale[row.id]
    if rules.superseded and row.superseded:
        return "superseded by a newer entry of the same env, config and target"
    if row.path in surplus:
        return f"not among the last {rules.keep_last} of {row.model or 'its model'}"
    if rules.older_than is not None and age is not None and age > rules.older_than:
        return f"made {_days(age)} ago"
    if rules.unused_since is not None and unused is not None and unused > rules.unused_since:
        return f"not used for {_days(unused)}"
    return "selected by the filter" if rules.by_filter_alone else ""


def _surplus(rows: Sequence[Row], keep_last: int | None) -> set[Path]:
    """Return the sound entries beyond the newest `keep_last` of each model."""
    if keep_last is None:
        return set()
    seen: dict[str, int] = {}
    surplus = set()
    for row in sorted(rows, key=lambda row: row.created, reverse=True):
        if row.health != "broken":
            seen[row.model] = seen.get(row.model, 0) + 1
            if seen[row.model] > keep_last:
                surplus.add(row.path)
    return surplus


def _over_limit(
    rows: Sequence[Row], doomed: Sequence[Row], rest: Sequence[Row], rules: Rules, free: int
) -> tuple[list[tuple[Row, str]], list[str]]:
    """Return what goes so that the limits hold, used longest ago first, and the limits that do not."""
    size = sum(row.size for row in rows) - sum(row.size for row in doomed)
    files = sum(row.files for row in rows) - sum(row.files for row in doomed)
    taken: list[tuple[Row, str]] = []

    def exceeded() -> str:
        if rules.max_size is not None and size > rules.max_size:
            return "--max-size"
        if rules.max_files is not None and files > rules.max_files:
            return "--max-files"
        return "--min-free" if rules.min_free is not None and free < rules.min_free else ""

    for row in sorted(rest, key=lambda row: (row.health != "broken", row.last_used or row.created, row.id)):
        limit = exceeded()
        if not limit:
            return taken, []
        taken.append((row, f"used longest ago, over {limit}"))
        size, files, free = size - row.size, files - row.files, free + row.size
    return taken, [limit] if (limit := exceeded()) else []


def _days(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"
