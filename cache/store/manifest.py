"""The two documents of an entry as checked data: its header, and the manifest of a rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.key import FACTOR_NAMES, FORMAT, LOOKUP_FACTORS
from graphkiln.cache.store.documents import DocumentFault, need
from graphkiln.cache.store.files import FileRecord, relative_parts

SCHEMA = 1
HEADER_FILE, FACTORS_FILE, MANIFEST_FILE = "entry.json", "factors.json", "manifest.json"
GRAPH_FILE, WIRING_FILE = "graph.py", "wiring.json"
# In the artifact of the kernels that run between the pieces: what each was compiled for.
ATTENTION_TABLE = "attention.json"
# Where an entry's AOT file has its artifacts: in the entry, or in the file itself.
AOT_KINDS = ("entry", "contained")
# What `publish` writes itself; a caller's header cannot say otherwise.
RESERVED = frozenset({"schema", "format", "key", "lookup", "hashes", "created", "factors", "sources", "aot"})
SHA256 = re.compile(r"[0-9a-f]{64}")
RANK = re.compile(r"(0|[1-9][0-9]{0,5})_(0|[1-9][0-9]{0,5})")
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Manifest:
    """What one rank uses: each file by its path relative to the entry, and what the compiler chose."""

    rank: str
    key: str
    files: Mapping[str, FileRecord]
    parts: Mapping[str, tuple[str, ...]]
    specific: Mapping[str, Any]
    build: Mapping[str, Any]
    build_digest: str

    @property
    def artifacts(self) -> tuple[str, ...]:
        """The artifact ids that the parts use, each once."""
        return tuple(dict.fromkeys(artifact for used in self.parts.values() for artifact in used))


def rank_folder(rank: str) -> str:
    """Return the folder name of a rank such as `0_0`; ValueError for what is no rank."""
    if RANK.fullmatch(rank) is None:
        raise ValueError(f"not a rank: {rank!r}")
    return f"rank_{rank}"


def artifact_id(files: Mapping[str, FileRecord]) -> str:
    """Return the id of an artifact: the digest of the names, sizes and digests of its files."""
    return digest(records_json(files))


def records_json(files: Mapping[str, FileRecord]) -> dict[str, dict[str, Any]]:
    """Return file records as they stand in a document."""
    return {name: {"size": record.size, "sha256": record.sha256} for name, record in files.items()}


def check_header(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of `entry.json` after checking what readers rely on; `DocumentFault` otherwise."""
    need(body.get("schema") == SCHEMA, f"schema {body.get('schema')!r} is not {SCHEMA}")
    need(body.get("format") == FORMAT, f"key format {body.get('format')!r} is not {FORMAT}")
    hashes = _mapping(body, "hashes")
    need(set(hashes) == set(FACTOR_NAMES), "hashes: one of each factor")
    need(all(is_sha256(value) for value in hashes.values()), "hashes: not digests")
    need(body.get("key") == digest({"format": FORMAT} | hashes), "key: not that of its hashes")
    lookup = digest({"format": FORMAT} | {name: hashes[name] for name in LOOKUP_FACTORS})
    need(body.get("lookup") == lookup, "lookup: not that of its hashes")
    need(isinstance(body.get("created"), str), "created: not a text")
    ranks = body.get("ranks_expected")
    need(isinstance(ranks, list) and bool(ranks), "ranks_expected: not a list of ranks")
    need(
        all(isinstance(rank, str) and RANK.fullmatch(rank) for rank in ranks or ()),
        "ranks_expected: not ranks",
    )
    _record(body.get("factors"), "factors")
    need(body.get("aot") in (None, *AOT_KINDS), "aot: not a kind of AOT file")
    for sha256, size in _mapping(body, "sources").items():
        need(is_sha256(sha256) and type(size) is int and size >= 0, "sources: not digests and sizes")
    return body


def read_manifest(body: dict[str, Any], rank: str, key: str) -> Manifest:
    """Return the manifest of `rank` in the entry `key` from its body; `DocumentFault` when it is not one."""
    need(body.get("schema") == SCHEMA, f"schema {body.get('schema')!r} is not {SCHEMA}")
    need(body.get("rank") == rank, f"rank: it is the manifest of {body.get('rank')!r}")
    need(body.get("key") == key, "key: it belongs to another entry")
    files = {
        _path(name, rank): _record(record, f"files: {name}")
        for name, record in _mapping(body, "files").items()
    }
    parts = {prefix: _part(prefix, part) for prefix, part in _mapping(body, "parts").items()}
    build, build_digest = _mapping(body, "build"), body.get("build_digest")
    need(
        isinstance(build_digest, str) and build_digest == _digest(build),
        "build_digest: not that of the build",
    )
    manifest = Manifest(rank, key, files, parts, _mapping(body, "specific"), build, str(build_digest))
    _check_artifacts(manifest)
    return manifest


def artifact_records(files: Mapping[str, FileRecord], artifact: str) -> dict[str, FileRecord]:
    """Return the records of one artifact's files, by their path inside the artifact."""
    start = f"artifacts/{artifact}/"
    return {name.removeprefix(start): record for name, record in files.items() if name.startswith(start)}


def _check_artifacts(manifest: Manifest) -> None:
    """An artifact is used if and only if its files are listed, under the id that they give."""
    for artifact in manifest.artifacts:
        records = artifact_records(manifest.files, artifact)
        need(bool(records) and artifact_id(records) == artifact, f"artifact {artifact[:10]}: not its files")
    listed = {name.split("/")[1] for name in manifest.files if name.startswith("artifacts/")}
    need(listed == set(manifest.artifacts), "files: artifacts that no part uses")


def _part(prefix: str, part: object) -> tuple[str, ...]:
    need(PREFIX.fullmatch(prefix) is not None, f"parts: {prefix!r} is not a prefix")
    used = part.get("artifacts") if isinstance(part, dict) else None
    if not isinstance(used, list) or not all(is_sha256(artifact) for artifact in used):
        raise DocumentFault("schema", f"parts: {prefix}: not a list of artifacts")
    return tuple(used)


def _path(name: str, rank: str) -> str:
    try:
        parts = relative_parts(name)
    except ValueError as error:
        raise DocumentFault("schema", f"files: {error}") from None
    inside = parts[0] == f"rank_{rank}" and len(parts) > 1
    need(inside or (parts[0] == "artifacts" and len(parts) > 2), f"files: {name!r} is not of this rank")
    return name


def _record(value: object, where: str) -> FileRecord:
    if (
        not isinstance(value, dict)
        or set(value) != {"size", "sha256"}
        or type(value["size"]) is not int
        or value["size"] < 0
        or not is_sha256(value["sha256"])
    ):
        raise DocumentFault("schema", f"{where}: not a size and a digest")
    return FileRecord(value["size"], value["sha256"])


def _mapping(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if not isinstance(value, dict):
        raise DocumentFault("schema", f"{name}: not a mapping")
    return value


def _digest(value: object) -> str:
    try:
        return digest(value)
    except NotCanonical as error:
        raise DocumentFault("schema", str(error)) from None


def is_sha256(value: object) -> bool:
    """Return whether a value of a document is a digest as 64 hex digits."""
    return isinstance(value, str) and SHA256.fullmatch(value) is not None
