"""The distinct pieces of an entry: where each is used, for which token counts, of which files it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.manifest import artifact_records

WIRING, GRAPH = "wiring.json", "graph.py"


@dataclass(frozen=True)
class Piece:
    """One distinct piece of one part.

    `uses` says for every call of it what ran before: "start", or the layer of the last op that stays
    eager. `range` is the least and the most tokens, `files` the sizes of its artifact's files.
    """

    rank: str
    prefix: str
    number: int
    fingerprint: str
    artifact: str
    range: tuple[int, ...]
    dynamic: str
    uses: tuple[str, ...]
    files: Mapping[str, int]
    inputs: int
    sources: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of its artifact."""
        return sum(self.files.values())


def pieces_of(entry: Entry) -> tuple[Piece, ...]:
    """Return the pieces of every part of every rank that is there, in the order of their numbers.

    Raises EntryDamaged for a manifest or a wiring that is not sound.
    """
    found: list[Piece] = []
    for rank in entry.ranks():
        manifest = entry.manifest(rank)
        for prefix in manifest.parts:
            wiring = entry.read_json(rank, prefix, WIRING)
            uses = uses_by_piece(wiring.get("steps") or ())
            for number, piece in enumerate(wiring.get("pieces") or ()):
                artifact = str(piece.get("artifact", ""))
                fingerprint = str(piece.get("fingerprint", ""))
                records = artifact_records(manifest.files, artifact)
                built = _built(manifest.build, prefix, fingerprint)
                found.append(
                    Piece(
                        rank, prefix, number, fingerprint, artifact, tuple(piece.get("range") or ()),
                        str(piece.get("dynamic", "")), tuple(uses.get(number, ())),
                        {name: record.size for name, record in sorted(records.items())},
                        len(piece.get("signature") or ()), built,
                    )
                )  # fmt: skip
    return tuple(found)


def uses_by_piece(steps: Sequence[Any]) -> dict[int, list[str]]:
    """Return by number of piece what ran before each of its calls."""
    uses: dict[int, list[str]] = {}
    before = "start"
    for step in steps:
        if not isinstance(step, Mapping):
            continue
        if "piece" in step:
            uses.setdefault(step["piece"], []).append(before)
        elif "op" in step:
            before = layer_of(step) or str(step["op"])
    return uses


def layer_of(step: Mapping[str, Any]) -> str | None:
    """Return the name of the layer that an op is called for, None where it is called for none."""
    texts = [
        arg[1][1] for arg in step.get("args", ()) if isinstance(arg, list) and arg[:1] == ["c"]
        and isinstance(arg[1], list) and arg[1][:1] == ["s"]
    ]  # fmt: skip
    return str(texts[0]) if texts else None


def _built(build: Mapping[str, Any], prefix: str, fingerprint: str) -> dict[str, str]:
    """Return the digest of each generated source of a piece, from the build of its rank."""
    part = build.get(prefix)
    pieces = part.get("pieces") if isinstance(part, Mapping) else None
    piece = pieces.get(fingerprint) if isinstance(pieces, Mapping) else None
    sources = piece.get("sources") if isinstance(piece, Mapping) else None
    return dict(sources) if isinstance(sources, Mapping) else {}
