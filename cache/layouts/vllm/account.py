"""All that one entry of a vLLM cache says about itself, and what can be recovered beside its hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.inspect.pieces import Piece
from graphkiln.cache.layouts.compiled import Compiled, sources_of
from graphkiln.cache.layouts.files import FileFault, read_file
from graphkiln.cache.layouts.found import ForeignAccount, ForeignRow
from graphkiln.cache.layouts.vllm.artifact import NAME, read_artifact
from graphkiln.cache.layouts.vllm.graph import GRAPH_FILE, GraphText, opaque_ops, read_graph
from graphkiln.cache.layouts.vllm.links import Unit
from graphkiln.cache.layouts.vllm.model import Model
from graphkiln.cache.layouts.vllm.rows import adaptor_rows, index_rows, models_of

# A submodule and its range as `model` writes them: `submod_0_(1, 512)`.
_MEGA = re.compile(r"submod_(?P<piece>\d+)_\((?P<low>\d+), (?P<high>\d+)\)")
# What differs from process to process and says nothing about the code.
_PASSING = re.compile(r"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR|TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR")
NOT_STORED = (
    "of the config only a hash is stored: not the model's name and path, max_model_len, max_num_seqs, "
    "the level, or any setting that leaves the graph alone"
)
NO_CODE = "of the code only a hash is stored, and the files that the graph's comments name"
NO_FACTORS = "its short-hash folder is not there: no value of the env, config and compiler factors is stored"
NO_USE = "when it was last used is not stored: a hit writes nothing"


@dataclass(frozen=True, order=True)
class Place:
    """Where an artifact is used: which piece, for which range of tokens."""

    rank: str
    prefix: str
    piece: int
    low: int
    high: int

    @classmethod
    def of(cls, rank: str, prefix: str, match: re.Match[str], numbers: list[int] | None = None) -> Place:
        """Return the place that a name tells; with `numbers` a piece is counted by its place among them."""
        piece = int(match["piece"])
        number = piece if numbers is None else numbers.index(piece)
        return cls(rank, prefix, number, int(match["low"]), int(match["high"]))


@dataclass(frozen=True)
class Held:
    """One stored artifact: where it is used, its bytes' digest or name, what it holds."""

    place: Place
    name: str
    size: int
    compiled: Compiled | None
    torch_key: str = ""


def account_of(row: ForeignRow) -> ForeignAccount:
    """Return what an entry says about itself; what cannot be read is left out, and `verify` names it."""
    unit: Unit = row.unit
    models = models_of(unit.aot)
    model = next(iter(models.values()), None)
    graphs = dict(graph_texts(unit))
    graph = read_graph(next(iter(graphs.values()))) if graphs else None
    held = list(artifacts_of(unit, models))
    compiled = [one.compiled for one in held if one.compiled]
    versions = _versions(unit, model, compiled)
    return ForeignAccount(
        row,
        about=tuple(_about(row, unit, model, graph)),
        hashes=row.hashes,
        factors={name: value for name, value in _factors(row, unit, model, graph, held, versions) if value},
        pieces=tuple(_pieces(held)),
        graphs=graphs,
        sources=dict(model.sources) if model else {},
        build=_build(held),
        versions=versions,
        notes=tuple(_notes(row, unit, model)),
    )


def graph_texts(unit: Unit) -> Iterator[tuple[str, str]]:
    """Yield the path and text of the split graph of each part."""
    for rank, prefix in unit.pieces.parts if unit.pieces else ():
        assert unit.pieces is not None
        name = f"rank_{rank}/{prefix}/{GRAPH_FILE}"
        if name in unit.pieces.files:
            yield name, unit.pieces.text(name)


def artifacts_of(unit: Unit, models: Mapping[str, Model]) -> Iterator[Held]:
    """Yield every artifact of an entry that can be read: those inside `model`, and lone files."""
    for rank, model in models.items():
        named = [
            (match, digest) for name, digest in model.artifacts.items() if (match := _MEGA.fullmatch(name))
        ]
        # Submodules are counted with those that are not compiled, lone artifacts without them.
        numbers = sorted({int(match["piece"]) for match, _ in named})
        for match, digest in named:
            data = model.store.get(digest)
            if data is not None:
                place = Place.of(rank, model.prefix, match, numbers)
                yield Held(place, digest, len(data), sources_of(data))
    for rank, prefix in unit.pieces.parts if unit.pieces else ():
        assert unit.pieces is not None
        for name in unit.pieces.artifacts(rank, prefix):
            yield from _lone(unit, rank, prefix, name)
    for rank, prefix, one in adaptor_rows(unit.pieces) if unit.pieces else ():
        assert unit.pieces is not None
        start = f"rank_{rank}/inductor_cache/fxgraph/{one.handle[1:3]}/{one.handle}/"
        files = sorted(name for name in unit.pieces.files if name.startswith(start))
        data = _bytes(unit, files[0]) if files else b""
        if data:
            place = Place(rank, prefix, one.piece, one.low, one.high)
            yield Held(place, one.handle, len(data), sources_of(data))


def _lone(unit: Unit, rank: str, prefix: str, name: str) -> Iterator[Held]:
    assert unit.pieces is not None
    match = NAME.fullmatch(name)
    path = f"rank_{rank}/{prefix}/{name}"
    if match is None:
        return
    place = Place.of(rank, prefix, match)
    if path not in unit.pieces.files:
        inside = {file: stat for file, stat in unit.pieces.files.items() if file.startswith(f"{path}/")}
        graph = next((file for file in sorted(inside) if "/fxgraph/" in file), "")
        data = _bytes(unit, graph) if graph else b""
        size = sum(stat.size for stat in inside.values())
        yield Held(place, name, size, sources_of(data) if data else None)
        return
    try:
        artifact = read_artifact(_bytes(unit, path), name)
    except FileFault:
        return
    graphs = list(artifact.items.get("inductor", {}).values())
    compiled = sources_of(graphs[0]) if graphs else None
    size = unit.pieces.files[path].size
    yield Held(place, artifact.key, size, compiled, artifact.torch_key)


def _bytes(unit: Unit, name: str) -> bytes:
    assert unit.pieces is not None
    try:
        return read_file(unit.pieces.path, name)
    except FileFault:
        return b""


def _about(
    row: ForeignRow, unit: Unit, model: Model | None, graph: GraphText | None
) -> Iterator[tuple[str, str]]:
    if unit.aot and unit.pieces:
        yield "AOT folder", f"{unit.aot.name}: {unit.how}"
    elif unit.pieces and unit.overwritten_by:
        yield "AOT folder", f"none any more: {row.fault}"
    if model:
        traced = f"{model.qualified}, line {model.first_line} of {model.file}"
        yield "traced", f"{traced}; {len(model.traced)} functions in {len(model.sources)} files"
    if graph:
        ops = sorted(set(opaque_ops(graph.text).values()))
        eager = f", split at {', '.join(ops)}" if ops else ""
        yield "graph", f"{len(graph.pieces)} pieces{eager}, {graph.layers} layers"


def _factors(
    row: ForeignRow,
    unit: Unit,
    model: Model | None,
    graph: GraphText | None,
    held: list[Held],
    versions: Mapping[str, str],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what could be recovered of each factor, by the words of our own factors."""
    factors = unit.pieces.known_factors if unit.pieces else None
    yield "env", dict(factors.env) if factors else {}
    rows = index_rows(unit.pieces) if unit.pieces else []
    ranges = sorted({(one.place.low, one.place.high) for one in held} | {(one.low, one.high) for one in rows})
    config: dict[str, Any] = {"dtype": row.dtype} if row.dtype else {}
    if ranges:
        config["max_num_batched_tokens"] = max(high for _, high in ranges)
        config["compile_ranges"] = [list(one) for one in ranges]
    ranks = sorted({*(unit.pieces.ranks if unit.pieces else ()), *(unit.aot.ranks if unit.aot else ())})
    if ranks:
        config["ranks"] = len(ranks)
    if graph:
        shapes = dict(graph.shapes)
        config["model"] = {"layers": graph.layers, "pieces": len(graph.pieces), "parameters": shapes}
    yield "config", config
    functions: dict[str, dict[str, str]] = {}
    for inlined in model.traced if model else ():
        functions.setdefault(inlined.module, {})[f"lines {inlined.first}-{inlined.last}"] = "traced"
    code: dict[str, Any] = {"functions": functions} if functions else {}
    if graph and not functions:
        code["files"] = list(graph.files)
    yield "code", {model.prefix or "model" if model else "graph": code} if code else {}
    settings: dict[str, str] = {}
    environment: dict[str, str] = {}
    for one in held:
        if one.compiled:
            settings |= {**one.compiled.key, **one.compiled.settings}
            environment |= one.compiled.environment
    compiler: dict[str, Any] = dict(versions)
    keys = {one.torch_key for one in held if one.torch_key}
    compiler |= {"torch_key": min(keys)} if keys else {}
    # What a graph's own key holds of the graph itself belongs to the code.
    kept = {name: text for name, text in settings.items() if not name.startswith(("gm", "example_inputs"))}
    compiler |= (
        {"settings": {name: text for name, text in sorted(kept.items()) if "0x" not in text}} if kept else {}
    )
    told = {name: text for name, text in sorted(environment.items()) if not _PASSING.fullmatch(name)}
    compiler |= {"environment": told} if told else {}
    yield "compiler", compiler


def _versions(unit: Unit, model: Model | None, compiled: list[Compiled]) -> dict[str, str]:
    found: dict[str, str] = {"vllm": unit.version} if unit.version else {}
    for one in compiled[:1]:
        found |= one.versions
    return found | (dict(model.versions) if model else {})


def _pieces(held: list[Held]) -> Iterator[Piece]:
    for one in sorted(held, key=lambda one: one.place):
        place, compiled = one.place, one.compiled
        names = {compiled.source_name: compiled.source_name} if compiled and compiled.source_name else {}
        # What serves the same place is compared; two artifacts with one source were compiled to one code.
        fingerprint = f"{place.piece} {place.low}..{place.high}"
        yield Piece(
            place.rank, place.prefix, place.piece, fingerprint, one.name, (place.low, place.high), "",
            (), {one.name: one.size}, 0, names,
        )  # fmt: skip


def _build(held: list[Held]) -> dict[str, Any]:
    """Return what the compilers chose, piece by piece."""
    return {
        f"{one.place.rank}.{one.place.prefix}.piece {one.place.piece} {one.place.low}..{one.place.high}": {
            "source": one.compiled.source_name,
            "kernels": one.compiled.kernels,
            "vectorised kernels": one.compiled.vectorised,
        }
        for one in held
        if one.compiled
    }


def _notes(row: ForeignRow, unit: Unit, model: Model | None) -> Iterator[str]:
    if unit.pieces is None:
        yield NO_FACTORS
    else:
        yield NOT_STORED
    if model is None:
        yield NO_CODE
    if row.last_used is None and row.form == "mega AOT":
        yield NO_USE
