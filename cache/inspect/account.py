"""All that one entry says about itself, as data: read from its files, none of them imported or unpickled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.inspect.attention import Attention, attention_of
from graphkiln.cache.inspect.capture import capture_of
from graphkiln.cache.inspect.guards import Guard, counts_by_kind, guards_of
from graphkiln.cache.inspect.pieces import GRAPH, WIRING, Piece, pieces_of
from graphkiln.cache.inspect.sizes import file_sizes
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.halves import aot_folders, aot_name, faults_of_aot, open_aot
from graphkiln.cache.store.root import CacheRoot

T = TypeVar("T")
# An absolute path of at least two parts, a home folder, or a drive.
_PATH = re.compile(r"(/[^/\0\n]+){2,}/?|~/.*|[A-Za-z]:\\.*")


@dataclass(frozen=True)
class Account:
    """What an entry holds. What cannot be read is left out and stands in `faults`.

    `doors` is by part what every call must bring, `paths` are values that look like paths, by where they
    stand; `aot` are the AOT files that belong to it; `starts` are the lines of the ledger that name it;
    `attention` are the kernels that run between the pieces; `capture` is the report of the last capture
    check, None where there was none.
    """

    entry: Entry
    factors: Mapping[str, Any]
    build_digest: str | None
    ranks: tuple[dict[str, Any], ...]
    pieces: tuple[Piece, ...]
    guards: tuple[Guard, ...]
    doors: Mapping[str, Any]
    paths: tuple[tuple[str, str], ...]
    faults: tuple[dict[str, str], ...]
    starts: tuple[dict[str, Any], ...]
    bytes: int
    files: int
    aot: tuple[dict[str, Any], ...] = ()
    attention: tuple[Attention, ...] = ()
    capture: Mapping[str, Any] | None = None

    @property
    def hits(self) -> int:
        """How many of the ledger's starts hit the entry."""
        return sum(start.get("outcome") == "hit" for start in self.starts)

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        entry, state = self.entry, self.entry.state
        return {
            "id": entry.short,
            "key": entry.key,
            "lookup": entry.lookup,
            "path": str(entry.path),
            "bytes": self.bytes,
            "files": self.files,
            "label": state.label,
            "pinned": state.pinned,
            "last_used": state.last_used,
            "header": dict(entry.header),
            "factors": dict(self.factors),
            "build_digest": self.build_digest,
            "ranks": list(self.ranks),
            "aot": list(self.aot),
            "pieces": [asdict(piece) for piece in self.pieces],
            "attention": [{**asdict(one), "steps": list(one.steps)} for one in self.attention],
            "guards": counts_by_kind(self.guards),
            "doors": dict(self.doors),
            "paths": [{"where": where, "value": value} for where, value in self.paths],
            "faults": list(self.faults),
            "starts": list(self.starts),
            "capture": self.capture,
        }


def account(entry: Entry, starts: Sequence[Mapping[str, Any]]) -> Account:
    """Return what an entry holds, every digest in it checked."""
    factors = readable(lambda: entry.factors().as_json()) or {}
    root = CacheRoot(entry.path.parent, entry.path.parent)
    sizes = [*file_sizes(entry.path).values()]
    if entry.path.name == entry.short:
        sizes += [size for folder in aot_folders(root, entry.key) for size in file_sizes(folder).values()]
    wirings = {f"{rank}/{prefix}": wiring for rank, prefix, wiring in _wirings(entry)}
    return Account(
        entry=entry,
        factors=factors,
        build_digest=readable(lambda: entry.build_digest),
        ranks=tuple(filter(None, (readable(partial(rank_facts, entry, rank)) for rank in entry.ranks()))),
        pieces=readable(lambda: pieces_of(entry)) or (),
        guards=tuple(guards_of(factors.get("code") or {})),
        doors={name: wiring["door"] for name, wiring in wirings.items() if "door" in wiring},
        paths=tuple(path_values({"header": entry.header, "factors": factors, "wiring": wirings})),
        faults=tuple(asdict(fault) for fault in entry.verify()),
        starts=tuple(dict(start) for start in starts if start.get("key") == entry.key),
        bytes=sum(sizes),
        files=len(sizes),
        aot=tuple(aot_facts(root, entry)),
        attention=readable(lambda: attention_of(entry)) or (),
        capture=capture_of(entry),
    )


def aot_facts(root: CacheRoot, entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield of each rank's AOT file where it lies, its size, whether it is self-contained, what is wrong."""
    if entry.aot is None or entry.path.name != entry.short:
        return
    wrong = {damage.file: f"{damage.fault} {damage.detail}".strip() for damage in faults_of_aot(root, entry)}
    for rank in entry.ranks():
        name = aot_name(entry.key, rank)
        file = readable(partial(open_aot, root, entry.key, rank))
        facts: dict[str, Any] = {"rank": rank, "path": str(root.cache / name), "fault": wrong.get(name, "")}
        if file is not None:
            held = sum(record.size for record in file.header.sections.values())
            facts |= {"bytes": held, "contained": file.header.contained}
            file.close()
        yield facts


def readable(read: Callable[[], T]) -> T | None:
    """Return what `read` returns, or None where it meets damage, which verification names."""
    try:
        return read()
    except EntryDamaged:
        return None


def rank_facts(entry: Entry, rank: str) -> dict[str, Any]:
    """Return what a rank's manifest says in short."""
    manifest = entry.manifest(rank)
    return {
        "rank": rank,
        "build_digest": manifest.build_digest,
        "bytes": sum(record.size for record in manifest.files.values()),
        "files": len(manifest.files),
        "passes": manifest.specific.get("passes") or {},
        "parts": {prefix: list(artifacts) for prefix, artifacts in manifest.parts.items()},
    }


def graphs(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each part's readable graph that is sound."""
    for rank, prefix in _parts(entry):
        text = readable(partial(entry.read_bytes, rank, prefix, GRAPH))
        if text is not None:
            yield f"rank_{rank}/{prefix}/{GRAPH}", text.decode("utf-8", "replace")


def sources(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the name and stored text of each traced module; those without a copy have none."""
    seen: set[str] = set()
    for _, _, wiring in _wirings(entry):
        for module, record in sorted((wiring.get("sources") or {}).items()):
            stored = record.get("stored")
            if stored and module not in seen:
                seen.add(module)
                text = readable(partial(entry.source_text, stored))
                if text is not None:
                    yield module, text


def path_values(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text inside `value` that looks like a path of some machine, with its dotted place."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from path_values(inner, f"{where}.{name}" if where else str(name))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from path_values(inner, f"{where}[{index}]")
    elif isinstance(value, str) and _PATH.fullmatch(value):
        yield where, value


def _parts(entry: Entry) -> Iterator[tuple[str, str]]:
    for rank in entry.ranks():
        manifest = readable(partial(entry.manifest, rank))
        for prefix in manifest.parts if manifest else ():
            yield rank, prefix


def _wirings(entry: Entry) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for rank, prefix in _parts(entry):
        wiring = readable(partial(entry.read_json, rank, prefix, WIRING))
        if wiring is not None:
            yield rank, prefix, wiring
