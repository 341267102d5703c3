"""The four factors, their hashes, and the two hashes made of them: lookup and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from graphkiln.cache.factors.canonical import canonical_json, digest

# Part of every lookup and key: raise it when the meaning of a factor or the layout on disk changes.
FORMAT = 1
SHORT_DIGITS = 10
FACTOR_NAMES = ("env", "config", "code", "compiler")
LOOKUP_FACTORS = ("env", "config", "compiler")


@dataclass(frozen=True, eq=False)
class Factors:
    """What was asked, as values: a deep copy that nobody can change any more.

    The copy is made through canonical JSON when the object is built, so a later edit of the
    caller's objects changes no key, and what has no canonical form raises `NotCanonical` naming
    the factor. Inside, mappings are read-only and lists are tuples; `as_json()` gives plain dicts
    and lists. `code` is None where nothing was traced yet: then there is a lookup and no key.
    """

    env: Mapping[str, Any]
    config: Mapping[str, Any]
    code: Mapping[str, Any] | None
    compiler: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in FACTOR_NAMES:
            value = getattr(self, name)
            if value is not None:
                value = _frozen(json.loads(canonical_json(value, name)))
            object.__setattr__(self, name, value)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Digest of each factor by name; `code` is absent where it is not known."""
        values = {name: getattr(self, name) for name in FACTOR_NAMES}
        return {name: digest(value, name) for name, value in values.items() if value is not None}

    @cached_property
    def lookup(self) -> str:
        """64 hex digits that are known without a trace: everything but the code factor."""
        return digest({"format": FORMAT} | {name: self.hashes[name] for name in LOOKUP_FACTORS})

    @cached_property
    def key(self) -> str:
        """64 hex digits of all four factors; ValueError where the code factor is not known."""
        if self.code is None:
            raise ValueError("there is no key without the code factor, only a lookup")
        return digest({"format": FORMAT} | self.hashes)

    @property
    def short(self) -> str:
        """The first digits of the key: the name of the entry's folder."""
        return self.key[:SHORT_DIGITS]

    def as_json(self) -> dict[str, Any]:
        """Return the four factors as plain dicts and lists, the caller's own copy."""
        return {name: _thawed(getattr(self, name)) for name in FACTOR_NAMES}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Factors:
        """Return the factors that `as_json` gave; ValueError where `data` is not of that shape."""
        if set(data) != set(FACTOR_NAMES):
            raise ValueError(f"factors are {', '.join(FACTOR_NAMES)}, not {', '.join(sorted(data))}")
        for name, value in data.items():
            if not isinstance(value, Mapping) and not (name == "code" and value is None):
                raise ValueError(f"the factor {name} is not a mapping")
        return cls(**data)

    def __eq__(self, other: object) -> bool:
        # By hash: field by field, 1 would equal True and 1.0, which give other keys.
        return isinstance(other, Factors) and self.hashes == other.hashes

    def __hash__(self) -> int:
        return hash(tuple(self.hashes.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings cannot be pickled; the plain form can.
        return Factors.from_json, (self.as_json(),)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value


def _thawed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_thawed(item) for item in value]
    return value
