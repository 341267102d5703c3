"""What a trace took for granted: the guards that are dropped at run time and checked once at load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.factors.traced import plain_constant, record_text


@dataclass(frozen=True)
class Guard:
    """One kind of fact about one thing; `times` is for how many layers it holds, `then` what was found."""

    part: str
    kind: str
    name: str
    then: Any
    times: int = 1


def guards_of(code: Mapping[str, Any]) -> list[Guard]:
    """Return every fact of a code factor that a load checks, in the order in which it is checked."""
    return [
        guard
        for prefix, part in sorted(code.items())
        if isinstance(part, Mapping)
        for guard in _guards(prefix, part)
    ]


def counts_by_kind(guards: Iterable[Guard]) -> dict[str, int]:
    """Return how many facts of each kind there are, the most frequent first."""
    counts: Counter[str] = Counter()
    for guard in guards:
        counts[guard.kind] += guard.times
    return dict(counts.most_common())


def _guards(prefix: str, part: Mapping[str, Any]) -> Iterator[Guard]:
    for module, functions in _items(part, "functions"):
        for name, digest in functions.items() if isinstance(functions, Mapping) else ():
            yield Guard(prefix, "function", f"{module}:{name}", digest)
    for title, kind in (("environment", "variable"), ("ambient", "torch state"), ("ops", "op")):
        for name, value in _items(part, title):
            yield Guard(prefix, kind, name, value)
    for row in part.get("parameters") or ():
        yield Guard(prefix, str(row[0]), str(row[1]), f"{row[2]} {list(row[3])}")
    for owner, methods in _items(part, "classes"):
        for name, identity in methods.items() if isinstance(methods, Mapping) else ():
            yield Guard(prefix, "method", f"{owner}.{name}", identity)
    for record in part.get("values") or ():
        if isinstance(record, Mapping) and "path" in record:
            times = len(record.get("over") or ()) or 1
            value = plain_constant(record.get("value"))
            yield Guard(prefix, str(record.get("kind")), record_text(record), value, times)


def _items(part: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = part.get(name)
    return sorted(found.items()) if isinstance(found, Mapping) else []
