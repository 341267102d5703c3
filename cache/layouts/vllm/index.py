"""`vllm_compile_cache.py`: which artifact serves which range of which piece; a Python literal."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.cache.layouts.files import FileFault, read_file

INDEX_FILE = "vllm_compile_cache.py"
# The two adaptors whose artifacts are known: files or folders of vLLM's, and Inductor's own folder.
STANDALONE, ADAPTOR = "inductor_standalone", "inductor"
_MOST = 16 << 20


@dataclass(frozen=True)
class Row:
    """One line: range of tokens, piece, who compiled it, its key, the artifact's name, where it lay."""

    low: int
    high: int
    piece: int
    adaptor: str
    key: str | None
    handle: str
    place: str


def read_index(folder: Path, name: str = INDEX_FILE) -> tuple[Row, ...]:
    """Return the lines of an index; `FileFault` for what is no literal, or not of the known shape.

    Only read as a literal: nothing of it is executed.
    """
    data = read_file(folder, name, _MOST)
    try:
        found = ast.literal_eval(data.decode("utf-8").strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError) as error:
        detail = "empty" if not data else f"no literal: {type(error).__name__}"
        raise FileFault(name, "unreadable", detail) from None
    if not isinstance(found, dict):
        raise FileFault(name, "schema", f"a {type(found).__name__} instead of a dict")
    return tuple(_row(key, value, name) for key, value in found.items())


def _row(key: Any, value: Any, name: str) -> Row:
    match key, value:
        case (
            ((int(low), int(high)), int(piece), str(adaptor)),
            {"cache_key": str() | None as made, "graph_handle": (str(handle), str(place))},
        ):
            if adaptor not in (STANDALONE, ADAPTOR):
                raise FileFault(name, "version", f"artifacts of {adaptor}")
            return Row(low, high, piece, adaptor, made, handle, place)
    raise FileFault(name, "schema", f"a line of another shape: {key!r}"[:120])
