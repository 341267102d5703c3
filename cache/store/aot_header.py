"""The header of an AOT file: judged alone, before anything behind it is read.

    graphkiln-aot 0001 <lookup> <bytes of the header> <sha256 of the header>\\n
    {header: JSON}

The first line has a fixed length. The header names the sections in their order with size and digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, BinaryIO

from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.key import FACTOR_NAMES, FORMAT, LOOKUP_FACTORS, SHORT_DIGITS
from graphkiln.cache.store.documents import DocumentFault, need, parse_object
from graphkiln.cache.store.files import FileRecord
from graphkiln.cache.store.manifest import PREFIX, RANK, is_sha256, records_json

AOT_FORMAT = 1
CODE_SECTION = "code.json"
# What a part has under its prefix; `buffers` only where it has any.
WIRING, DOOR, MODEL, BUFFERS = "wiring.json", "door.json", "model.json", "buffers.safetensors"

MAGIC = b"graphkiln-aot "
_LINE = re.compile(rb"graphkiln-aot (\d{4}) ([0-9a-f]{64}) (\d{10}) ([0-9a-f]{64})\n")
LINE_BYTES = len("graphkiln-aot 0001 ") + 65 + 11 + 65
# Far above any real header; a larger one is not read into memory to find that out.
_MAX_HEADER_BYTES = 64 << 20
_TEXTS = ("model", "dtype", "created")


@dataclass(frozen=True)
class AotHeader:
    """A header that is sound in itself. `body` is all of it; sections lie at `offsets`, by name.

    `artifacts` are the records of every artifact's files; `parts` the artifacts of each part, in the
    order of its pieces.
    """

    body: Mapping[str, Any]
    sections: Mapping[str, FileRecord]
    offsets: Mapping[str, int]
    artifacts: Mapping[str, Mapping[str, FileRecord]]
    parts: Mapping[str, tuple[str, ...]]

    @property
    def key(self) -> str:
        return str(self.body["key"])

    @property
    def short(self) -> str:
        return self.key[:SHORT_DIGITS]

    @property
    def lookup(self) -> str:
        return str(self.body["lookup"])

    @property
    def rank(self) -> str:
        return str(self.body["rank"])

    @property
    def created(self) -> str:
        return str(self.body["created"])

    @property
    def contained(self) -> bool:
        """Whether the artifacts are in the file."""
        return bool(self.body["contained"])


def read_line(stream: BinaryIO) -> tuple[str, int, str]:
    """Return lookup, length and digest of the header from the first line; `DocumentFault`."""
    line = stream.read(LINE_BYTES)
    match = _LINE.fullmatch(line)
    if match is None:
        raise DocumentFault("unreadable", "empty" if not line else "not an AOT file")
    version = int(match[1])
    need(version == AOT_FORMAT, f"format {version}, this version reads {AOT_FORMAT}")
    return match[2].decode(), int(match[3]), match[4].decode()


def read_header(stream: BinaryIO, size: int) -> AotHeader:
    """Return the header at the beginning of a file of `size` bytes, reading nothing behind it.

    `DocumentFault` for a header that is not what was written, or that makes no sense in itself.
    """
    lookup, length, sha256 = read_line(stream)
    need(length <= min(_MAX_HEADER_BYTES, size), "the header is longer than the file")
    data = stream.read(length)
    if len(data) != length:
        raise DocumentFault("size", f"{len(data)} bytes instead of {length}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DocumentFault("digest", "its bytes are not those that were written")
    body = parse_object(data)
    _check_key(body, lookup)
    sections = _sections(body.get("sections"))
    offsets = list(accumulate((record.size for record in sections.values()), initial=LINE_BYTES + length))
    if offsets[-1] != size:
        raise DocumentFault("size", f"{size} bytes instead of {offsets[-1]}")
    header = AotHeader(
        body, sections, dict(zip(sections, offsets, strict=False)), _artifacts(body), _parts(body)
    )
    _check_whole(header)
    return header


def _check_key(body: Mapping[str, Any], lookup: str) -> None:
    need(body.get("aot_format") == AOT_FORMAT, f"format {body.get('aot_format')!r} is not {AOT_FORMAT}")
    hashes = body.get("hashes")
    need(isinstance(hashes, dict) and set(hashes) == set(FACTOR_NAMES), "hashes: one of each factor")
    assert isinstance(hashes, dict)
    need(all(is_sha256(value) for value in hashes.values()), "hashes: not digests")
    need(body.get("key") == digest({"format": FORMAT} | hashes), "key: not that of its hashes")
    own = digest({"format": FORMAT} | {name: hashes[name] for name in LOOKUP_FACTORS})
    need(body.get("lookup") == own == lookup, "lookup: not that of its hashes")
    factors = body.get("factors")
    need(isinstance(factors, dict) and set(factors) == set(LOOKUP_FACTORS), "factors: not those of a lookup")
    assert isinstance(factors, dict)
    for name, values in factors.items():
        need(isinstance(values, dict), f"factors: {name}: not a mapping")
        need(hashlib.sha256(_canonical(values)).hexdigest() == hashes[name], f"factors: {name}: not its hash")
    rank = body.get("rank")
    need(isinstance(rank, str) and RANK.fullmatch(rank) is not None, "rank: not a rank")
    need(type(body.get("contained")) is bool, "contained: not true or false")
    for name in _TEXTS:
        need(isinstance(body.get(name), str), f"{name}: not a text")
    _check_facts(body)


def _check_facts(body: Mapping[str, Any]) -> None:
    """The facts that are judged before the body is read: versions, target, code."""
    versions, target, code = (body.get(name) for name in ("versions", "target", "code"))
    need(_is_texts(versions) and {"torch", "python"} <= set(versions or ()), "versions: not texts by name")
    need(isinstance(target, dict), "target: not a mapping")
    assert isinstance(target, dict)
    need(
        all(isinstance(target.get(name), str) for name in ("name", "device"))
        and isinstance(target.get("features"), list)
        and all(isinstance(feature, str) for feature in target["features"]),
        "target: not a target",
    )
    need(isinstance(code, dict), "code: not a mapping")
    assert isinstance(code, dict)
    for module, record in code.items():
        need(
            isinstance(record, dict)
            and set(record) == {"file_sha256", "functions"}
            and (record["file_sha256"] is None or is_sha256(record["file_sha256"]))
            and _is_texts(record["functions"]),
            f"code: {module}: not digests by function",
        )
    pieces = body.get("pieces")
    need(
        isinstance(pieces, dict)
        and all(type(pieces.get(name)) is int and pieces[name] >= 0 for name in ("total", "distinct")),
        "pieces: not counts",
    )
    need(type(body.get("checked")) is bool, "checked: not true or false")
    phases = body.get("phases")
    need(isinstance(phases, list) and all(_is_phase(row) for row in phases), "phases: not seconds by name")


def _check_whole(header: AotHeader) -> None:
    """Sections, parts and artifacts belong together: no more and no less than a load needs."""
    wanted = {CODE_SECTION}
    wanted |= {f"{prefix}/{name}" for prefix in header.parts for name in (WIRING, DOOR, MODEL)}
    allowed = {f"{prefix}/{BUFFERS}" for prefix in header.parts}
    inside = {
        f"artifacts/{artifact}/{name}": record
        for artifact, files in header.artifacts.items()
        for name, record in files.items()
    }
    if header.contained:
        wanted |= set(inside)
    need(wanted <= set(header.sections) <= wanted | allowed, "sections: not those of its parts")
    if header.contained:
        need(
            all(header.sections[name] == record for name, record in inside.items()),
            "sections: not the artifacts' files",
        )
    used = {artifact for artifacts in header.parts.values() for artifact in artifacts}
    need(used == set(header.artifacts), "parts: not the artifacts of the header")
    code = header.sections[CODE_SECTION]
    need(code.sha256 == header.body["hashes"]["code"], "code: not that of the key")


def _sections(value: object) -> dict[str, FileRecord]:
    need(isinstance(value, list), "sections: not a list")
    assert isinstance(value, list)
    found: dict[str, FileRecord] = {}
    for row in value:
        need(isinstance(row, dict) and set(row) == {"name", "size", "sha256"}, "sections: not a section")
        name = row["name"]
        need(isinstance(name, str) and name not in found, "sections: a name stands twice")
        found[name] = _record(row["size"], row["sha256"], f"sections: {name}")
    return found


def _artifacts(body: Mapping[str, Any]) -> dict[str, dict[str, FileRecord]]:
    value = body.get("artifacts")
    need(isinstance(value, dict), "artifacts: not a mapping")
    assert isinstance(value, dict)
    found: dict[str, dict[str, FileRecord]] = {}
    for artifact, files in value.items():
        need(is_sha256(artifact) and isinstance(files, dict), "artifacts: not files by id")
        records: dict[str, FileRecord] = {}
        for name, record in files.items():
            need(isinstance(record, dict) and set(record) == {"size", "sha256"}, "artifacts: not a record")
            records[name] = _record(record["size"], record["sha256"], f"artifacts: {name}")
        need(
            hashlib.sha256(_canonical(records_json(records))).hexdigest() == artifact,
            f"artifact {artifact[:10]}: not its files",
        )
        found[artifact] = records
    return found


def _parts(body: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    value = body.get("parts")
    need(isinstance(value, dict) and bool(value), "parts: not a mapping")
    assert isinstance(value, dict)
    for prefix, artifacts in value.items():
        need(PREFIX.fullmatch(prefix) is not None, f"parts: {prefix!r} is not a prefix")
        need(
            isinstance(artifacts, list) and all(map(is_sha256, artifacts)), f"parts: {prefix}: not artifacts"
        )
    return {prefix: tuple(artifacts) for prefix, artifacts in value.items()}


def _record(size: object, sha256: object, where: str) -> FileRecord:
    if type(size) is not int or size < 0 or not is_sha256(sha256):
        raise DocumentFault("schema", f"{where}: not a size and a digest")
    return FileRecord(size, str(sha256))


def _canonical(value: object) -> bytes:
    # What was parsed is plain: its canonical text needs no second look at each value.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _is_phase(row: object) -> bool:
    named = isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)
    return named and type(row[1]) in (int, float)  # type: ignore[index]


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
