"""Texts of two entries, line by line: the functions that were traced, and the split graphs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.inspect.pieces import GRAPH, WIRING, Piece
from graphkiln.cache.store.entries import Entry

_CONTEXT_LINES = 3


@dataclass(frozen=True)
class TextDiff:
    """A unified diff of what is called `name`; `why` says why there are no lines where there are none."""

    name: str
    lines: tuple[str, ...]
    why: str = ""


def module_diffs(one: Entry, other: Entry, modules: Iterable[str]) -> tuple[TextDiff, ...]:
    """Return the diff of each named module's source, where both entries keep it."""
    before, after = _sources(one), _sources(other)
    return tuple(_module_diff(module, one, before, other, after) for module in sorted(set(modules)))


def graph_diffs(one: Entry, other: Entry) -> tuple[TextDiff, ...]:
    """Return the diff of each part's graph that both entries have and that is not the same."""
    found = []
    for rank in sorted(set(one.ranks()) & set(other.ranks())):
        for prefix in sorted(set(one.manifest(rank).parts) & set(other.manifest(rank).parts)):
            texts = [entry.read_bytes(rank, prefix, GRAPH).decode() for entry in (one, other)]
            if texts[0] != texts[1]:
                name = f"rank_{rank}/{prefix}/{GRAPH}"
                found.append(TextDiff(name, unified(texts[0], texts[1], name)))
    return tuple(found)


def generated_diffs(one: Entry, other: Entry, pairs: Iterable[tuple[Piece, Piece]]) -> tuple[TextDiff, ...]:
    """Return the diff of each generated source that two builds of the same piece have and not the same."""
    found = []
    for a, b in pairs:
        for name in sorted(set(a.sources) & set(b.sources)):
            if a.sources[name] != b.sources[name] and not name.endswith(".safetensors"):
                title = f"piece {a.number}/{name}"
                lines = unified(_generated(one, a, name), _generated(other, b, name), title)
                found.append(TextDiff(title, lines, "" if lines else "the stored texts are equal"))
    return tuple(found)


def _generated(entry: Entry, piece: Piece, name: str) -> str:
    path = f"artifacts/{piece.artifact}/{name}"
    return entry.files.checked(path, entry.manifest(piece.rank).files[path]).decode("utf-8", "replace")


def unified(before: str, after: str, name: str) -> tuple[str, ...]:
    """Return the lines of a unified diff, A before and B after."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"A/{name}", f"B/{name}", lineterm="", n=_CONTEXT_LINES
    )
    return tuple(lines)


def _module_diff(
    module: str, one: Entry, before: Mapping[str, Any], other: Entry, after: Mapping[str, Any]
) -> TextDiff:
    texts: list[str] = []
    for title, entry, sources in (("A", one, before), ("B", other, after)):
        record = sources.get(module)
        if record is None:
            return TextDiff(module, (), f"{title} traced nothing of it")
        if record.get("stored") is None:
            return TextDiff(module, (), f"{title} keeps no copy of its source")
        try:
            texts.append(entry.source_text(record["stored"]))
        except EntryDamaged as damage:
            return TextDiff(module, (), f"{title}: {damage}")
    lines = unified(texts[0], texts[1], module)
    return TextDiff(module, lines, "" if lines else "the stored sources are equal")


def _sources(entry: Entry) -> dict[str, Any]:
    """Return what the entry's parts say about the modules that were traced."""
    found: dict[str, Any] = {}
    for rank in entry.ranks():
        for prefix in entry.manifest(rank).parts:
            sources = entry.read_json(rank, prefix, WIRING).get("sources")
            found |= sources if isinstance(sources, dict) else {}
    return found
