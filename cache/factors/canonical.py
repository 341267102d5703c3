"""Canonical JSON: one text for one content, in every process.

A key is a digest of this text, so whatever could make two texts of one content (order of a mapping,
identity of shared objects, a float's spelling) or one text of two contents (1 and 1.0 and True, a
lone surrogate pair and the character it spells) is settled or refused here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from graphkiln.cache.errors import NotCanonical

# What parsed canonical JSON is made of. `Any` inside: a recursive alias costs every reader a cast.
Json: TypeAlias = dict[str, Any] | list[Any] | str | int | float | bool | None

MAX_DEPTH = 100
# Python refuses to read integers of more than 4300 decimal digits back; stay well under it.
MAX_INTEGER_BITS = 8192


def canonical_json(value: object, where: str = "") -> bytes:
    """Return `value` as canonical JSON: ASCII, sorted keys, no spaces.

    Takes None, bool, int, finite float, str, list or tuple, and mappings with str keys. Anything
    else, subclasses of the scalars included, raises `NotCanonical` with the dotted path to it,
    starting at `where`.
    """
    plain = _plain(value, where, {})
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def digest(value: object, where: str = "") -> str:
    """Return the SHA-256 of the canonical JSON of `value`, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value, where)).hexdigest()


def _plain(value: object, where: str, open_containers: dict[int, None]) -> Json:
    """Return `value` rebuilt of dict, list and scalars, or raise `NotCanonical`."""
    if value is None or isinstance(value, bool):
        return value
    kind = type(value)
    if isinstance(value, (str, int, float)) and kind in (str, int, float):
        return _text(value, where) if isinstance(value, str) else _number(value, where)
    if not isinstance(value, (Mapping, list, tuple)):
        raise NotCanonical(where, f"a value of type {_type_name(kind)} has no canonical form")

    if id(value) in open_containers:
        raise NotCanonical(where, "it contains itself")
    if len(open_containers) >= MAX_DEPTH:
        raise NotCanonical(where, f"it is nested deeper than {MAX_DEPTH} levels")
    open_containers[id(value)] = None
    try:
        if isinstance(value, Mapping):
            return {
                _key(key, where): _plain(item, f"{where}.{key}" if where else str(key), open_containers)
                for key, item in value.items()
            }
        return [_plain(item, f"{where}[{index}]", open_containers) for index, item in enumerate(value)]
    finally:
        del open_containers[id(value)]


def _key(key: object, where: str) -> str:
    if not isinstance(key, str) or type(key) is not str:
        raise NotCanonical(where, f"the key {key!r} is of type {_type_name(type(key))}, not str")
    return _text(key, where)


def _number(number: int | float, where: str) -> int | float:
    if isinstance(number, int):
        if number.bit_length() > MAX_INTEGER_BITS:
            raise NotCanonical(where, "the integer is too large")
    elif not math.isfinite(number):
        raise NotCanonical(where, f"{number} is not a finite number")
    return number


def _text(text: str, where: str) -> str:
    # Two lone surrogates and the character that they spell would be escaped to the same text.
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise NotCanonical(where, "the text holds a lone surrogate") from None
    return text


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
