"""The entries that come nearest to what a start would ask for, the one that differs least first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.key import LOOKUP_FACTORS
from graphkiln.cache.inspect.causes import Cause
from graphkiln.cache.inspect.compare import causes_of, factor_differences
from graphkiln.cache.store.entries import Entry

# The fields of a model's config that say which model it is.
IDENTITY = ("model.model_type", "model.architectures", "model.factory", "model.class")
# Reading the values of an entry costs milliseconds: only this many are compared value by value.
_MOST_COMPARED = 12


@dataclass(frozen=True)
class Near:
    """One entry and why a start would not hit it."""

    id: str
    key: str
    path: str
    model: str
    created: str
    causes: tuple[Cause, ...]


def nearest(
    entries: Sequence[Entry],
    now: Mapping[str, Any],
    hashes: Mapping[str, str],
    versions: Mapping[str, str],
    code_of: Callable[[Entry], list[Difference]],
    limit: int,
    model: str = "",
    left_out: Callable[[EntryDamaged], object] = lambda _: None,
) -> tuple[Near, ...]:
    """Return the `limit` entries that differ least from the factors `now`, whose hashes are `hashes`.

    `code_of` gives how the code of an entry differs from what is here. A damaged entry is left out,
    and `left_out` is told of it.
    """

    def distance(entry: Entry) -> tuple[int, bool]:
        differing = sum(entry.header["hashes"][name] != hashes.get(name) for name in LOOKUP_FACTORS)
        return differing, entry.header.get("model") != model

    # What another model was compiled for is never near, however little of it is named.
    compared: list[tuple[tuple[int, ...], Near]] = []
    for entry in sorted(entries, key=distance)[:_MOST_COMPARED]:
        try:
            then = entry.factors().as_json()
            found = [*factor_differences(then, now, LOOKUP_FACTORS), *code_of(entry)]
        except EntryDamaged as damage:
            left_out(damage)
            continue
        causes = causes_of(found, entry.header.get("versions") or {}, versions)
        telling = sum(cause.difference.relevant for cause in causes)
        near = Near(
            entry.short, entry.key, str(entry.path), str(entry.header.get("model", "")), entry.created, causes
        )
        other = any(cause.difference.name.startswith(IDENTITY) for cause in causes)
        compared.append(((other, telling, len(causes), len(found)), near))
    # The entries come newest first, and sorting keeps that order among equals.
    return tuple(near for _, near in sorted(compared, key=lambda item: item[0])[:limit])
