"""The attention kernels that lie in an entry between its pieces: what they serve, what they were made for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from graphkiln.cache.factors.difference import Difference, differences
from graphkiln.cache.inspect.pieces import layer_of
from graphkiln.cache.store.documents import parse_object
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.manifest import ATTENTION_TABLE, WIRING_FILE, artifact_records

# The op that attends, as it stands in a wiring.
ATTENTION_OP = "graphkiln::unified_attention_with_output"
# Of a row: where the code lies and how it is called, which follows from the rest.
_HANDLING = frozenset({"kernel", "constants", "cubin", "arguments", "types", "nulls"})


@dataclass(frozen=True)
class AttentionKernel:
    """One kernel: its name, the kind of step that it attends in ("" where it serves every one).

    `facts` are what it was compiled for and what its code takes; `size` is that of its code in bytes.
    """

    name: str
    step: str
    facts: Mapping[str, Any]
    size: int

    @property
    def title(self) -> str:
        """Its name, with the step where it is for one kind of step alone."""
        return f"{self.name} ({self.step})" if self.step else self.name


@dataclass(frozen=True)
class Attention:
    """What one rank launches for attention: the layers that are served, and the kernels of its artifact.

    There are no kernels where their table is of a form that is not known here, and no artifact where an
    entry for a GPU brings none. `size` is that of all files of the artifact in bytes.
    """

    rank: str
    artifact: str
    layers: tuple[str, ...]
    kernels: tuple[AttentionKernel, ...]
    size: int

    @property
    def steps(self) -> tuple[str, ...]:
        """The kinds of step that have code of their own."""
        return tuple(dict.fromkeys(one.step for one in self.kernels if one.step))


def attention_of(entry: Entry) -> tuple[Attention, ...]:
    """Return the attention of every rank that is there and for a GPU, if it has any.

    Raises EntryDamaged for a manifest, a wiring or a table that is not sound.
    """
    found: list[Attention] = []
    for rank in entry.ranks():
        wirings = [entry.read_json(rank, prefix, WIRING_FILE) for prefix in entry.manifest(rank).parts]
        # All parts of a model have the same.
        beside = wirings[0].get("attention") if wirings else None
        layers = tuple(layer for wiring in wirings for layer in layers_called(wiring))
        if isinstance(beside, Mapping) and isinstance(beside.get("artifact"), str):
            found.append(_read(entry, rank, beside["artifact"], tuple(beside.get("dtypes") or ())))
        elif layers and (entry.header.get("target") or {}).get("device") == "cuda":
            found.append(Attention(rank, "", layers, (), 0))
    return tuple(found)


def layers_called(wiring: Mapping[str, Any]) -> list[str]:
    """Return the layers at whose attention a part's graph was cut, in order."""
    steps = [step for step in wiring.get("steps") or () if isinstance(step, Mapping)]
    found = (layer_of(step) for step in steps if str(step.get("op", "")).startswith(ATTENTION_OP))
    return [layer for layer in found if layer is not None]


def _read(entry: Entry, rank: str, artifact: str, layers: tuple[str, ...]) -> Attention:
    records = artifact_records(entry.manifest(rank).files, artifact)
    kernels: list[AttentionKernel] = []
    if ATTENTION_TABLE in records:
        path = f"artifacts/{artifact}/{ATTENTION_TABLE}"
        data = entry.files.checked(path, records[ATTENTION_TABLE])
        with entry.files.reading(path):
            rows = _rows(parse_object(data))
        for row in rows:
            code = records.get(str(row.get("cubin")))
            constants = row["constants"]
            facts = {**constants, **{name: row[name] for name in sorted({*row} - _HANDLING)}}
            size = 0 if code is None else code.size
            kernels.append(AttentionKernel(str(row.get("kernel")), _step(constants), facts, size))
    return Attention(rank, artifact, layers, tuple(kernels), sum(one.size for one in records.values()))


def _rows(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the kernels of a table, none where it is of a form that is not known here."""
    rows = table.get("kernels")
    known = isinstance(rows, list) and all(
        isinstance(row, Mapping) and isinstance(row.get("constants"), Mapping) for row in rows
    )
    return list(rows or ()) if known else []


def _step(constants: Mapping[str, Any]) -> str:
    if constants.get("SPLIT") or "MOST_SPLITS" in constants:
        return "decode with split keys"
    if "ONE_BLOCK" not in constants:
        return ""
    return "decode" if constants["ONE_BLOCK"] else "prefill"


def attention_differences(
    a: Sequence[Attention], b: Sequence[Attention]
) -> dict[str, tuple[Difference, ...]]:
    """Return by rank what the attention of two builds differs in, by kernel and fact.

    A fact that several kernels differ in alike stands there once. Ranks of which there is nothing to say
    are left out, and those with a table that is not known.
    """
    unknown = {one.rank for one in (*a, *b) if one.artifact and not one.kernels}
    ranks = sorted({one.rank for one in (*a, *b)} - unknown)
    found = {rank: tuple(_of_rank(rank, *(_kernels(side, rank) for side in (a, b)))) for rank in ranks}
    return {rank: rows for rank, rows in found.items() if rows}


def _kernels(side: Sequence[Attention], rank: str) -> list[AttentionKernel]:
    return [kernel for one in side if one.rank == rank for kernel in one.kernels]


def _of_rank(rank: str, a: list[AttentionKernel], b: list[AttentionKernel]) -> Iterator[Difference]:
    start = f"{rank}.attention"
    if not a or not b:
        then, now = (f"{len(side)} kernels" if side else None for side in (a, b))
        yield Difference("build", start, then, now, kind="removed" if a else "added")
        return
    alike: dict[tuple[str, str, str], list[tuple[str, Difference]]] = defaultdict(list)
    for title, one, other in _pairs(a, b):
        if one is None or other is None:
            then, now = (None if side is None else "there" for side in (one, other))
            yield Difference("build", f"{start}.{title}", then, now, kind="removed" if one else "added")
            continue
        for row in differences("build", one.facts, other.facts):
            alike[row.name, repr(row.then), repr(row.now)].append((title, row))
    for (name, _, _), rows in alike.items():
        of = rows[0][0] if len(rows) == 1 else f"{len(rows)} kernels"
        yield Difference("build", f"{start}.{of}.{name}", rows[0][1].then, rows[0][1].now)


def _pairs(
    a: list[AttentionKernel], b: list[AttentionKernel]
) -> Iterator[tuple[str, AttentionKernel | None, AttentionKernel | None]]:
    """Yield the kernels that are not in both alike, by title; several of one title are numbered."""
    for title in dict.fromkeys(kernel.title for kernel in (*a, *b)):
        mine, theirs = ([one for one in side if one.title == title] for side in (a, b))
        several = max(len(mine), len(theirs)) > 1
        held = [one.facts for one in theirs]
        left = [one for one in mine if one.facts not in held]
        held = [one.facts for one in mine]
        other = [one for one in theirs if one.facts not in held]
        for number, pair in enumerate(zip_longest(left, other), start=1):
            yield (f"{title} {number}" if several else title), *pair
