"""Digests of functions from their source text, and whether recorded functions are still the same.

Nothing is imported and nothing is executed: a module is located, its file is read, its syntax tree
is digested function by function. A digest leaves out what cannot change the code that a function
compiles to (comments, positions, docstrings) and keeps the rest: decorators, defaults, annotations,
body. Functions are named as `co_qualname` names them; where several share a name (lambdas of one
function, definitions in two branches), the digest is that of all of them in order.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import SourceUnreadable
from graphkiln.cache.factors.difference import Difference, Kind
from graphkiln.cache.factors.modules import locate
from graphkiln.cache.factors.syntax import function_digests

__all__ = ["SourceIndex", "check_functions", "file_digest", "index_file", "index_source", "locate"]


@dataclass(frozen=True)
class SourceIndex:
    """One source file as it was read: digest of its bytes, and of each function by qualified name."""

    file_sha256: str
    functions: Mapping[str, str]


def index_source(text: str, where: str = "<source>") -> dict[str, str]:
    """Return the digest of every function, lambda and comprehension of `text` by qualified name.

    Raises `SourceUnreadable` naming `where` when the text cannot be parsed.
    """
    try:
        return function_digests(text)
    except (SyntaxError, ValueError) as error:
        raise SourceUnreadable(where, f"it does not parse: {error}") from None
    except (RecursionError, MemoryError):
        raise SourceUnreadable(where, "it is nested too deeply") from None


def index_file(path: Path) -> SourceIndex:
    """Return the index of a source file, parsed once for each content that the path ever had."""
    data = _read(path)
    sha256 = hashlib.sha256(data).hexdigest()
    index = _indexes.get(path)
    if index is None or index.file_sha256 != sha256:
        try:
            text = importlib.util.decode_source(data)
        except (SyntaxError, UnicodeDecodeError) as error:
            raise SourceUnreadable(str(path), f"it cannot be decoded: {error}") from None
        index = _indexes[path] = SourceIndex(sha256, index_source(text, str(path)))
    return index


_indexes: dict[Path, SourceIndex] = {}


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the bytes of a file; `SourceUnreadable` when it cannot be read."""
    return hashlib.sha256(_read(path)).hexdigest()


def check_functions(recorded: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Return how the recorded functions differ from the source that would run now.

    `recorded` is {module: {"file_sha256": ..., "functions": {qualified name: digest}}}. A file with
    the recorded bytes is not parsed; without `file_sha256` it always is. A source that cannot be
    found or read is a difference of the kind "cannot verify", never silence.
    """
    return [found for module in sorted(recorded) for found in _check_module(module, recorded[module])]


def _check_module(module: str, record: Mapping[str, Any]) -> list[Difference]:
    functions: Mapping[str, str] = record["functions"]
    path = locate(module)
    if path is None:
        return [_unverified(module, "its source was not found")]
    try:
        if file_digest(path) == record.get("file_sha256"):
            return []
        now = index_file(path).functions
    except SourceUnreadable as error:
        return [_unverified(module, error.reason)]
    return [
        _changed(module, qualname, then, now.get(qualname), path)
        for qualname, then in sorted(functions.items())
        if now.get(qualname) != then
    ]


def _changed(module: str, qualname: str, then: str, now: str | None, path: Path) -> Difference:
    remedy = f"restore {qualname} in {path}, or compile again"
    kind: Kind = "removed" if now is None else "changed"
    return Difference("code", f"{module}:{qualname}", then, now, remedy=remedy, kind=kind)


def _unverified(module: str, reason: str) -> Difference:
    remedy = f"make the source of {module} readable: {reason}"
    return Difference("code", module, "source", None, remedy=remedy, kind="cannot verify")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceUnreadable(str(path), error.strerror or str(error)) from None
