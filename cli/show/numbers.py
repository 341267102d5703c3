"""Numbers as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime

UNITS = ("KiB", "MiB", "GiB", "TiB")


def bytes_text(count: int) -> str:
    """Returns a size with three digits: 912 B, 1.25 MiB, 23.4 GiB."""
    if count < 1024:
        return f"{count} B"
    size, step = count / 1024, 0
    # 999.5 would be shown as 1000 of its unit
    while size >= 999.5 and step < len(UNITS) - 1:
        size, step = size / 1024, step + 1
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{digits}f} {UNITS[step]}"


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f}"


def count_text(count: int, one: str, many: str = "") -> str:
    """Returns `1 entry`, `2 entries`: the plural is `one` with an s unless given."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def age_text(then: str, now: datetime | None = None) -> str:
    """Returns how long ago the ISO time `then` was, or `then` itself where it is no ISO time."""
    try:
        moment = datetime.fromisoformat(then)
    except ValueError:
        return then
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"
