"""JSON documents that carry the digest of their own body, and a strict reader of JSON.

A sealed document is

    {"sha256": "<64 hex digits>",
    "body": {...}}

with the digest taken over the very bytes of the body, so that a reader checks it before anything is
parsed, and any JSON tool still reads the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from graphkiln.cache.factors.canonical import canonical_json

_SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n"body": (\{.*\})\}\n', re.DOTALL)


class DocumentFault(Exception):
    """A document is not what it should be: `fault` as in `EntryDamaged`, and `detail`."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(fault, detail)
        self.fault, self.detail = fault, detail


def seal(body: Mapping[str, Any], where: str) -> bytes:
    """Return the bytes of a document; `NotCanonical` under `where` for a body that is not plain JSON."""
    plain = json.loads(canonical_json(body, where))
    text = json.dumps(plain, indent=1, sort_keys=True, allow_nan=False).encode("ascii")
    return b'{"sha256": "%s",\n"body": %s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


def unseal(data: bytes) -> dict[str, Any]:
    """Return the body of a document after its digest agreed; `DocumentFault` otherwise."""
    match = _SEAL.fullmatch(data)
    if match is None:
        raise DocumentFault("unreadable", "empty" if not data else "not a document with a digest")
    if hashlib.sha256(match[2]).hexdigest() != match[1].decode():
        raise DocumentFault("digest", "the body is not what was written")
    return parse_object(match[2])


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object; `DocumentFault` for anything else, for doubled keys and non-finite numbers."""
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_without_doubles,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise DocumentFault("schema", "nested too deeply") from None
    except ValueError as error:
        raise DocumentFault("schema", f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DocumentFault("schema", "not a JSON object")
    return value


def need(found: bool, detail: str) -> None:
    """Raise the `DocumentFault` of a wrong schema unless `found`."""
    if not found:
        raise DocumentFault("schema", detail)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"a key stands twice, {twice[:80]!r}")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number
