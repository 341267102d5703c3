"""What two entries differ in: the causes by factor, and what became of them in graph, pieces and build."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from graphkiln.cache.factors.difference import Difference, differences
from graphkiln.cache.factors.key import FACTOR_NAMES
from graphkiln.cache.inspect.attention import attention_differences, attention_of
from graphkiln.cache.inspect.capture import capture_differences
from graphkiln.cache.inspect.causes import Cause, topic_of
from graphkiln.cache.inspect.compare import causes_of, factor_differences
from graphkiln.cache.inspect.pieces import Piece, pieces_of
from graphkiln.cache.inspect.texts import TextDiff, generated_diffs, graph_diffs, module_diffs
from graphkiln.cache.store.entries import Entry

SAME, OTHER_BUILD, DIFFERENT = "same", "same key, different build", "different"
# Of a foreign tree, which does not store all that would have to be compared.
UNKNOWN = "unknown"
_ATTENTION = re.compile(r"\w+\.(.+\.)?attention(\.|$)")


@dataclass(frozen=True)
class Side:
    """One of the two entries, in short."""

    id: str
    key: str
    path: str
    model: str
    created: str
    build_digest: str | None


@dataclass(frozen=True)
class PieceRow:
    """A piece of one side or both: same, rebuilt, changed (another one in its place), only in A or B."""

    state: str
    a: Piece | None
    b: Piece | None


@dataclass(frozen=True)
class EntryDiff:
    """How entry B differs from entry A. `same` says factor by factor whether they agree, None: not stored.

    `asked` and `became` are the differences between what was typed and between what was in effect;
    `build` those between what the compilers chose, `generated` the texts behind them where the pieces
    are the same; `captured` those between the reports of their capture checks, which no verdict heeds.
    """

    a: Side
    b: Side
    verdict: str
    same: Mapping[str, bool | None]
    causes: tuple[Cause, ...]
    asked: tuple[Difference, ...]
    became: tuple[Difference, ...]
    modules: tuple[TextDiff, ...]
    graphs: tuple[TextDiff, ...]
    pieces: tuple[PieceRow, ...]
    generated: tuple[TextDiff, ...]
    build: tuple[Difference, ...]
    captured: tuple[Difference, ...]
    notes: tuple[str, ...] = ()


def diff(a: Entry, b: Entry, factor: str | None = None) -> EntryDiff:
    """Return how `b` differs from `a`; `factor` looks at that one alone.

    Raises EntryDamaged for a file of either that is not sound.
    """
    names = FACTOR_NAMES if factor is None else (factor,)
    same = {name: a.header["hashes"][name] == b.header["hashes"][name] for name in names}
    found = _differences(a, b, [name for name in names if not same[name]])
    pieces = piece_rows(pieces_of(a), pieces_of(b))
    rebuilt = [(row.a, row.b) for row in pieces if row.state == "rebuilt" and row.a and row.b]
    graphs = graph_diffs(a, b) if factor in (None, "code") else ()
    build = _build_differences(a, b) if factor is None else ()
    consequences = _consequences(pieces, graphs, build) if found and factor is None else []
    modules = {one.name.partition(":")[0] for one in found if topic_of(one) == "code.function changed"}
    everything = all(same.values())
    verdict = DIFFERENT if not everything else OTHER_BUILD if build else SAME
    versions = [entry.header.get("versions") or {} for entry in (a, b)]
    return EntryDiff(
        side(a), side(b), verdict, same,
        causes_of([*found, *consequences], *versions),
        tuple(differences("config", a.header.get("requested"), b.header.get("requested")))
        if factor in (None, "config") else (),
        tuple(differences("config", a.header.get("effective"), b.header.get("effective")))
        if factor in (None, "config") else (),
        module_diffs(a, b, modules), graphs,
        pieces if factor in (None, "code") else (),
        generated_diffs(a, b, rebuilt) if factor is None else (),
        build,
        capture_differences(a, b) if factor is None else (),
    )  # fmt: skip


def side(entry: Entry) -> Side:
    """Return an entry in short."""
    model = str(entry.header.get("model", ""))
    return Side(entry.short, entry.key, str(entry.path), model, entry.created, entry.build_digest)


def _differences(a: Entry, b: Entry, names: Sequence[str]) -> list[Difference]:
    if not names:
        return []
    then, now = a.factors().as_json(), b.factors().as_json()
    found = factor_differences(then, now, names)
    for name in names:
        if not any(difference.factor == name for difference in found):
            # Never silence: the hashes say that something differs.
            found.append(Difference(name, "values", a.header["hashes"][name], b.header["hashes"][name]))
    return found


def piece_rows(a: Sequence[Piece], b: Sequence[Piece]) -> tuple[PieceRow, ...]:
    """Return the pieces side by side: by fingerprint where both have it, else by their place."""
    there = {(piece.rank, piece.prefix, piece.fingerprint): piece for piece in b}
    rows: list[PieceRow] = []
    left_a: list[Piece] = []
    for piece in a:
        twin = there.pop((piece.rank, piece.prefix, piece.fingerprint), None)
        if twin is None:
            left_a.append(piece)
            continue
        equal = piece.sources == twin.sources and piece.range == twin.range
        rows.append(PieceRow("same" if equal else "rebuilt", piece, twin))
    for one, other in zip_longest(left_a, there.values()):
        state = "only in B" if one is None else "only in A" if other is None else "changed"
        rows.append(PieceRow(state, one, other))
    return tuple(sorted(rows, key=_place))


def _place(row: PieceRow) -> tuple[str, str, int]:
    piece = row.a or row.b
    assert piece is not None
    return piece.rank, piece.prefix, piece.number


def _build_differences(a: Entry, b: Entry) -> tuple[Difference, ...]:
    """Return what the compilers chose differently, rank by rank."""
    attention = attention_differences(attention_of(a), attention_of(b))
    builds: list[dict[str, Any]] = [
        {
            # What is told kernel by kernel is not told by digest too.
            rank: _less_told(manifest.build) if rank in attention else dict(manifest.build)
            for rank, manifest in ((rank, entry.manifest(rank)) for rank in entry.ranks())
        }
        for entry in (a, b)
    ]
    named = [row for rank in attention for row in attention[rank]]
    return (*differences("build", builds[0], builds[1]), *named)


def _less_told(build: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's build with nothing of its attention but what compiled that."""
    return {
        prefix: {**part, "attention": attention.get("triton")}
        if isinstance(part, Mapping) and isinstance(attention := part.get("attention"), Mapping)
        else part
        for prefix, part in build.items()
    }


def _consequences(
    pieces: Sequence[PieceRow], graphs: Sequence[TextDiff], build: Sequence[Difference]
) -> list[Difference]:
    """Return what followed from the causes as differences of their own kind, each thing once."""
    found = [Difference("build", f"graph {graph.name}", "as in A", "another text") for graph in graphs]
    for row in pieces:
        if row.state != "same":
            name = f"piece {(row.a or row.b).number}"  # type: ignore[union-attr]
            prints = [piece.fingerprint if piece else None for piece in (row.a, row.b)]
            found.append(Difference("build", name, prints[0], prints[1]))
    if any(_ATTENTION.match(one.name) for one in build):
        found.append(Difference("build", "attention", "as in A", "other kernels"))
    if build and not found:
        many = "1 difference" if len(build) == 1 else f"{len(build)} differences"
        found.append(Difference("build", "what the compiler chose", "as in A", many))
    return found
