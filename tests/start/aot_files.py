"""AOT files taken apart and put together again, with digests that agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from graphkiln.cache.store.aot import AotFile, pack
from graphkiln.cache.store.aot_build import aot_bytes
from graphkiln.cache.store.entries import Entry

_ADDED = ("aot_format", "sections")


class Counting(BytesIO):
    """A file that remembers how far it was read."""

    furthest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.furthest = max(self.furthest, self.tell())
        return data


def self_contained(entry: Path, target: Path) -> Path:
    """Writes the self-contained AOT file of an entry."""
    target.write_bytes(aot_bytes(Entry(entry), "0_0", contained=True))
    return target


def opened(data: bytes) -> AotFile:
    return AotFile(Counting(data), len(data), "test")


def taken_apart(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The header as it was packed, and the sections."""
    file = opened(data)
    body = {name: value for name, value in file.header.body.items() if name not in _ADDED}
    return body, {name: file.section(name) for name in file.header.sections}


def packed(body: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """A file in which every digest agrees, the key's own included."""
    hashes = {**body["hashes"], "code": hashlib.sha256(sections["code.json"]).hexdigest()}
    text = json.dumps({"format": 1, **hashes}, sort_keys=True, separators=(",", ":"))
    return pack({**body, "hashes": hashes, "key": hashlib.sha256(text.encode()).hexdigest()}, sections)


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Changes the header of a file and gives it the digests of that."""
    body, sections = taken_apart(path.read_bytes())
    change(body)
    path.write_bytes(packed(body, sections))
    return path
