"""Compiling one part: from a traced graph to sealed artifacts and the wiring that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.core.choices import Choices
from graphkiln.core.compile.execute import WIRING_FORMAT
from graphkiln.core.compile.inductor import BuiltPiece, compile_piece, compiler_identity
from graphkiln.core.compile.pieces import Piece, describe_piece
from graphkiln.core.compile.seal import build_identity, seal, triton_id
from graphkiln.core.compile.settings import InductorSettings
from graphkiln.core.compile.split import SplitGraph, split_graph
from graphkiln.core.compile.structured import trace_pieces, trace_ranges, trace_split
from graphkiln.core.compile.triton_kernels import triton_identity
from graphkiln.core.compile.wiring import Wiring, describe_door, describe_inputs
from graphkiln.core.errors import ShapeLimited
from graphkiln.core.passes.pipeline import PassRun
from graphkiln.core.trace.capture import Capture
from graphkiln.core.trace.shapes import ShapeFact, require

Files = Mapping[str, "bytes | Path"]


@dataclass(frozen=True)
class SealedArtifact:
    """A distinct piece compiled for one range, as files.

    `piece` is its number, `dynamic` says how the token count was treated (backed, unbacked, static),
    `kernels` how many libraries it holds, `chosen` which have the configuration that a file of choices names.
    """

    piece: int
    fingerprint: str
    range: tuple[int, int]
    files: Files
    dynamic: str
    kernels: int
    passes: tuple[PassRun, ...] = ()
    chosen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BuiltPart:
    """All of one part that is published: readable graph, wiring, artifacts, the build's identity."""

    graph_py: str
    wiring: dict[str, Any]
    artifacts: tuple[SealedArtifact, ...]
    pieces_total: int
    build: dict[str, Any]
    passes: tuple[dict[str, Any], ...] = ()


def split_capture(
    capture: Capture, splitting_ops: Sequence[str]
) -> tuple[SplitGraph, list[Piece], dict[str, int]]:
    """Returns the split graph, its distinct pieces, and the piece number of every compiled part by name."""
    split = split_graph(capture.graph, splitting_ops)
    pieces: list[Piece] = []
    number: dict[str, int] = {}
    piece_of: dict[str, int] = {}
    for part in split.pieces:
        piece = describe_piece(part.module, capture.tokens)
        if piece.fingerprint not in number:
            number[piece.fingerprint] = len(pieces)
            pieces.append(piece)
        piece_of[part.name] = number[piece.fingerprint]
    return split, pieces, piece_of


def build_part(
    module: torch.nn.Module,
    capture: Capture,
    dynamic: Mapping[str, Sequence[int]],
    splitting_ops: Sequence[str],
    ranges: Sequence[InductorSettings],
    known: dict[tuple[str, tuple[int, int]], SealedArtifact],
    on_piece: Callable[[int, int], None],
) -> BuiltPart:
    """Returns a traced part compiled and sealed, each distinct piece once for each of `ranges`, in order.

    `known` holds what other parts of the same start compiled, by fingerprint and range, and is added
    to. `on_piece(done, total)` is told of every piece.
    """
    split, pieces, piece_of = split_capture(capture, splitting_ops)
    graph_py = readable(split, piece_of)
    trace_split(capture.compile_id, split, piece_of, splitting_ops)
    dump = ranges[0].dump
    if dump is not None:
        dump.split(graph_py, [piece.graph for piece in pieces])
    artifacts = []
    total = len(pieces) * len(ranges)
    on_piece(0, total)
    for settings in ranges:
        for number, piece in enumerate(pieces):
            found = (piece.fingerprint, (settings.smallest, settings.largest))
            if found not in known:
                known[found] = _sealed(number, piece, settings)
            artifacts.append(replace(known[found], piece=number))
            on_piece(len(artifacts), total)
    bounds = [(settings.smallest, settings.largest) for settings in ranges]
    wiring = wire(split, piece_of, module, capture, dynamic, bounds)
    wiring["pieces"] = [
        {
            "piece": artifact.piece,
            "fingerprint": artifact.fingerprint,
            "range": list(artifact.range),
            "dynamic": artifact.dynamic,
            "signature": pieces[artifact.piece].signature["inputs"],
        }
        for artifact in artifacts
    ]
    _trace_built(capture.compile_id, artifacts, piece_of, bounds)
    return BuiltPart(
        graph_py=graph_py,
        wiring=wiring,
        artifacts=tuple(artifacts),
        pieces_total=len(split.pieces),
        build={
            "pieces": {
                f"{artifact.fingerprint} {artifact.range[0]}-{artifact.range[1]}": {
                    "dynamic": artifact.dynamic,
                    "sources": build_identity(artifact.files),
                }
                for artifact in artifacts
            },
            "target": ranges[0].target.as_factor(),
            "compiler": compiler_identity() if _holds(artifacts, ".so") else None,
            "triton": triton_identity() if _holds(artifacts, ".cubin") else None,
        },
        passes=tuple(
            {
                "piece": artifact.piece,
                "tokens": list(artifact.range),
                "passes": [asdict(run) for run in artifact.passes],
            }
            for artifact in artifacts
        ),
    )


def wire(
    split: SplitGraph,
    piece_of: Mapping[str, int],
    module: torch.nn.Module,
    capture: Capture,
    dynamic: Mapping[str, Sequence[int]],
    ranges: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """Returns the wiring of a split graph, all but its pieces."""
    wired = Wiring(split, piece_of)
    smallest, largest = min(start for start, _ in ranges), max(end for _, end in ranges)
    return {
        "format": WIRING_FORMAT,
        "inputs": describe_inputs(module, capture),
        "registers": wired.registers,
        "steps": wired.steps,
        "outputs": wired.outputs,
        "structure": capture.structure,
        "door": describe_door(capture, dynamic, smallest, largest),
        "ranges": [list(bounds) for bounds in ranges],
    }


def _holds(artifacts: Sequence[SealedArtifact], suffix: str) -> bool:
    return any(name.endswith(suffix) for artifact in artifacts for name in artifact.files)


def _sealed(number: int, piece: Piece, settings: InductorSettings) -> SealedArtifact:
    dump, bounds = settings.dump, (settings.smallest, settings.largest)
    built = compile_piece(piece, settings, None if dump is None else dump.watch(number, *bounds))
    dynamic = "static" if settings.static else "unbacked" if settings.unbacked else "backed"
    try:
        _hold(built, settings)
    except ShapeLimited:
        # The limit is Inductor's and not the model's: without a hint it makes no such assumption.
        watch = None if dump is None else dump.watch(number, *bounds)
        built = compile_piece(piece, replace(settings, unbacked=True), watch)
        _hold(built, settings)
        dynamic = "unbacked"
    if dump is not None:
        dump.piece(number, *bounds, built)
    chosen = frozenset[str]()
    if settings.choices is not None:
        built, chosen = _frozen(built, settings.choices)
    inputs = canonical_json({"inputs": piece.signature["inputs"]})
    files = {**seal(built, piece.fingerprint), "inputs.json": inputs}
    kernels = len(built.kernels) + len(built.triton)
    return SealedArtifact(number, piece.fingerprint, bounds, files, dynamic, kernels, built.passes, chosen)


def _frozen(built: BuiltPiece, choices: Choices) -> tuple[BuiltPiece, frozenset[str]]:
    """Returns a piece whose kernels have the one configuration that was chosen, and which these are."""
    kernels, chosen = {}, set()
    for source, kernel in built.triton.items():
        name = triton_id(kernel)
        index = choices.of(name, [variant.config for variant in kernel.variants])
        if index is not None:
            chosen.add(name)
            kernel = replace(kernel, variants=(kernel.variants[index],))
        kernels[source] = kernel
    return replace(built, triton=kernels), frozenset(chosen)


def _trace_built(
    compile_id: Any,
    artifacts: Sequence[SealedArtifact],
    piece_of: Mapping[str, int],
    ranges: Sequence[tuple[int, int]],
) -> None:
    trace_pieces(
        compile_id,
        lambda: [
            {
                "piece": artifact.piece,
                "fingerprint": artifact.fingerprint,
                "tokens": list(artifact.range),
                "parts": [name for name, used in piece_of.items() if used == artifact.piece],
                "dynamic": artifact.dynamic,
                "kernels": artifact.kernels,
                "passes": {run.name: run.matches for run in artifact.passes},
            }
            for artifact in artifacts
        ],
    )
    trace_ranges(
        compile_id,
        lambda: [
            {
                "smallest": start,
                "largest": end,
                "pieces": [artifact.piece for artifact in artifacts if artifact.range == (start, end)],
            }
            for start, end in ranges
        ],
    )


def _hold(built: BuiltPiece, settings: InductorSettings) -> None:
    if built.tokens is None:
        return
    # One token is held by the operator log and the check; a backed symbol starts at 2.
    facts = [ShapeFact(fact, "Inductor") for fact in built.facts]
    require(facts, frozenset({built.tokens}), max(2, settings.smallest), settings.largest)


def readable(split: SplitGraph, piece_of: Mapping[str, int]) -> str:
    """Returns the split graph as Python text: a function for each distinct piece, and the calls."""
    written: set[int] = set()
    head = '"""The split graph, to be read and not to be run."""'
    blocks = [f"{head}\n\nimport torch\nfrom torch import device\n"]
    for part in split.parts:
        if part.splitting:
            blocks.append(_function(part.module, f"eager_{part.index}"))
        elif piece_of[part.name] not in written:
            written.add(piece_of[part.name])
            blocks.append(_function(part.module, f"piece_{piece_of[part.name]}"))
    main = split.outer.code
    for part in split.parts:
        name = f"eager_{part.index}" if part.splitting else f"piece_{piece_of[part.name]}"
        main = main.replace(f"self.{part.name}(", f"{name}(")
    blocks.append(main.strip().replace("def forward(self, ", "def main(", 1) + "\n")
    return "\n\n".join(blocks)


def _function(module: torch.fx.GraphModule, name: str) -> str:
    return (
        str(module.code)
        .strip()
        .replace("def forward(self, ", f"def {name}(", 1)
        .replace("def forward(self)", f"def {name}()", 1)
        + "\n"
    )
