"""`artifact_compile_range_*_subgraph_*`: one compiled piece for one range of tokens, as one file."""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphkiln.cache.layouts.files import FileFault

NAME = re.compile(r"artifact_compile_range_(?P<low>\d+)_(?P<high>\d+)_subgraph_(?P<piece>\d+)")
HEADER = b"CacheCompiledArtifact"
VERSION = 1
KINDS = ("inductor", "aot_autograd")
_LENGTH = struct.Struct(">Q")
_CHECKSUM = struct.Struct(">I")


@dataclass(frozen=True)
class Artifact:
    """What the file says: hex of the torch build's key, the AOTAutograd key, pickles by kind and key."""

    torch_key: str
    key: str
    items: Mapping[str, Mapping[str, bytes]]


def read_artifact(data: bytes, name: str) -> Artifact:
    """Return an artifact after both checksums agreed; `FileFault` naming what is not as it should be."""
    body = _checked(data, name, "")
    try:
        header, torch_key, key, payload = _fields(body)
    except (ValueError, struct.error):
        raise FileFault(name, "schema", "not the four fields of an artifact") from None
    if header != HEADER:
        raise FileFault(name, "version", f"its header says {header[:40]!r}")
    inside = _checked(payload, name, "payload: ")
    try:
        version = _LENGTH.unpack_from(inside)[0]
        if version != VERSION:
            raise FileFault(name, "version", f"its payload is of version {version}")
        return Artifact(torch_key.hex(), _word(key), dict(_items(inside, _LENGTH.size)))
    except (ValueError, struct.error, binascii.Error):
        raise FileFault(name, "schema", "its payload cannot be taken apart") from None


def _checked(data: bytes, name: str, where: str) -> bytes:
    if len(data) <= _CHECKSUM.size:
        raise FileFault(name, "size", f"{where}{len(data)} bytes" if data else f"{where}empty")
    if _CHECKSUM.unpack_from(data)[0] != zlib.crc32(memoryview(data)[_CHECKSUM.size :]):
        raise FileFault(name, "digest", f"{where}its CRC32 is not the one that was written")
    return data[_CHECKSUM.size :]


def _fields(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        field, at = _field(data, at)
        found.append(field)
    return found


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    size = _LENGTH.unpack_from(data, at)[0]
    start = at + _LENGTH.size
    if start + size > len(data):
        raise ValueError("a field ends beyond the file")
    return data[start : start + size], start + size


def _items(data: bytes, at: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    while at < len(data):
        kind, at = _field(data, at)
        count = _LENGTH.unpack_from(data, at)[0]
        at += _LENGTH.size
        items = {}
        for _ in range(count):
            key, at = _field(data, at)
            items[_word(key)], at = _field(data, at)
        yield _word(kind), items


def _word(data: bytes) -> str:
    return base64.b64decode(data, validate=True).decode("utf-8")
