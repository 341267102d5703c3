"""The AOT file that belongs to an entry: made of nothing but the entry, so that it can be made again."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.cache.factors.key import LOOKUP_FACTORS
from graphkiln.cache.store.aot import pack
from graphkiln.cache.store.aot_header import BUFFERS, CODE_SECTION, DOOR, MODEL, WIRING
from graphkiln.cache.store.documents import DocumentFault, need
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.manifest import (
    FACTORS_FILE,
    WIRING_FILE,
    artifact_records,
    rank_folder,
    records_json,
)

# Names of dtypes as torch and as safetensors write them, and the bytes of one element.
DTYPES = {
    "bool": ("BOOL", 1), "uint8": ("U8", 1), "int8": ("I8", 1), "int16": ("I16", 2), "float16": ("F16", 2),
    "bfloat16": ("BF16", 2), "int32": ("I32", 4), "float32": ("F32", 4), "int64": ("I64", 8),
    "float64": ("F64", 8),
}  # fmt: skip


def aot_bytes(entry: Entry, rank: str, *, contained: bool = False) -> bytes:
    """Return the AOT file of one rank of an entry, the same bytes each time.

    `contained` puts the artifacts' files into it. Raises `EntryDamaged` for a broken file of the entry,
    and for one that has not what a start needs.
    """
    manifest = entry.manifest(rank)
    factors = entry.factors().as_json()
    wirings = {prefix: entry.read_json(rank, prefix, WIRING_FILE) for prefix in manifest.parts}
    sections = {CODE_SECTION: canonical_json(factors["code"], "code")}
    for prefix, wiring in wirings.items():
        with entry.files.reading(f"{rank_folder(rank)}/{prefix}/{WIRING_FILE}"):
            sections |= {f"{prefix}/{name}": data for name, data in _part(wiring).items()}
    records = {artifact: artifact_records(manifest.files, artifact) for artifact in manifest.artifacts}
    if contained:
        for artifact, files in records.items():
            for name, record in files.items():
                path = f"artifacts/{artifact}/{name}"
                sections[path] = entry.files.checked(path, record)
    header = entry.header
    with entry.files.reading(FACTORS_FILE):
        code = _code(factors["code"], wirings)
    body = {
        "key": entry.key,
        "lookup": entry.lookup,
        "hashes": dict(header["hashes"]),
        "factors": {name: factors[name] for name in LOOKUP_FACTORS},
        "rank": rank,
        "contained": contained,
        **{name: header.get(name) for name in ("created", "model", "dtype", "target", "versions", "pieces")},
        "checked": bool(header.get("checked")),
        "phases": header.get("phases") or [],
        "code": code,
        "artifacts": {artifact: records_json(files) for artifact, files in records.items()},
        "parts": {prefix: list(used) for prefix, used in manifest.parts.items()},
    }
    return pack(body, sections)


def _part(wiring: dict[str, Any]) -> dict[str, bytes]:
    """The sections of one part: what `wiring.json` holds, apart by when a start needs it."""
    for name in ("door", "model", "pieces", "sources"):
        need(name in wiring, f"it has no {name}")
    rest = {name: value for name, value in wiring.items() if name not in ("door", "model")}
    model, buffers = wiring["model"], b""
    if isinstance(model, dict) and model.get("buffers"):
        rows = model["buffers"]
        buffers = pack_plain(rows)
        plain = {
            name: {fact: value for fact, value in row.items() if fact != "base64"}
            for name, row in rows.items()
        }
        model = {**model, "buffers": plain}
    found = {
        WIRING: canonical_json(rest, "wiring"),
        DOOR: canonical_json(wiring["door"], "door"),
        MODEL: canonical_json({"model": model}, "model"),
    }
    return {**found, BUFFERS: buffers} if buffers else found


def code_of(code: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the functions of one part's code factor by module, with the digest of each module's file."""
    return {
        module: {
            "file_sha256": sources.get(module, {}).get("file_sha256"),
            "functions": dict(functions),
        }
        for module, functions in code["functions"].items()
    }


def _code(code: Mapping[str, Any], wirings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    need(set(code) == set(wirings), "its parts are not those of the rank")
    found: dict[str, dict[str, Any]] = {}
    for prefix, factor in sorted(code.items()):
        for module, record in code_of(factor, wirings[prefix]["sources"]).items():
            known = found.setdefault(module, record)
            known["functions"] = {**known["functions"], **record["functions"]}
    return found


def pack_plain(rows: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return tensors, each given by dtype, shape and base64 of its elements, in safetensors form."""
    header: dict[str, Any] = {}
    data = b""
    for name, row in sorted(rows.items(), key=lambda item: (-_dtype(item[1])[1], item[0])):
        code, size = _dtype(row)
        elements = base64.b64decode(row["base64"])
        need(len(elements) == size * math.prod(row["shape"]), f"buffer {name}: not as long as its shape")
        header[name] = {
            "dtype": code,
            "shape": list(row["shape"]),
            "data_offsets": [len(data), len(data) + len(elements)],
        }
        data += elements
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _dtype(row: Mapping[str, Any]) -> tuple[str, int]:
    if row["dtype"] not in DTYPES:
        raise DocumentFault("schema", f"a buffer of {row['dtype']} has no plain form")
    return DTYPES[row["dtype"]]
