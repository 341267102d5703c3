"""Compiling one part: from a traced graph to sealed artifacts and the wiring that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from graphkiln.core.compile.inductor import BuiltPiece, compile_piece, compiler_identity
from graphkiln.core.compile.pieces import Piece, describe_piece
from graphkiln.core.compile.seal import build_identity, seal
from graphkiln.core.compile.settings import InductorSettings
from graphkiln.core.compile.split import SplitGraph, split_graph
from graphkiln.core.compile.wiring import FORMAT, Wiring, describe_door, describe_inputs
from graphkiln.core.errors import ShapeLimited
from graphkiln.core.trace.capture import Capture
from graphkiln.core.trace.shapes import ShapeFact, require

Files = Mapping[str, "bytes | Path"]


@dataclass(frozen=True)
class SealedArtifact:
    """One distinct piece as files, how its symbol was treated, and how many libraries it holds."""

    fingerprint: str
    files: Files
    dynamic: str
    kernels: int


@dataclass(frozen=True)
class BuiltPart:
    """All of one part that is published: readable graph, wiring, artifacts, the build's identity."""

    graph_py: str
    wiring: dict[str, Any]
    artifacts: tuple[SealedArtifact, ...]
    pieces_total: int
    build: dict[str, Any]


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
    settings: InductorSettings,
    on_piece: Callable[[int, int], None],
) -> BuiltPart:
    """Returns a traced part compiled and sealed. `on_piece(done, total)` is told of every distinct piece."""
    split, pieces, piece_of = split_capture(capture, splitting_ops)
    artifacts = []
    on_piece(0, len(pieces))
    for done, piece in enumerate(pieces, start=1):
        artifacts.append(_sealed(piece, settings))
        on_piece(done, len(pieces))
    wired = Wiring(split, piece_of)
    wiring = {
        "format": FORMAT,
        "inputs": describe_inputs(module, capture),
        "registers": wired.registers,
        "steps": wired.steps,
        "outputs": wired.outputs,
        "structure": capture.structure,
        "door": describe_door(capture, dynamic, settings.smallest, settings.largest),
        "pieces": [
            {
                "fingerprint": artifact.fingerprint,
                "range": [settings.smallest, settings.largest],
                "dynamic": artifact.dynamic,
                "signature": piece.signature["inputs"],
            }
            for piece, artifact in zip(pieces, artifacts, strict=True)
        ],
    }
    return BuiltPart(
        graph_py=readable(split, piece_of),
        wiring=wiring,
        artifacts=tuple(artifacts),
        pieces_total=len(split.pieces),
        build={
            "pieces": {
                artifact.fingerprint: {"dynamic": artifact.dynamic, "sources": build_identity(artifact.files)}
                for artifact in artifacts
            },
            "isa": settings.target.isa,
            "compiler": compiler_identity() if any(artifact.kernels for artifact in artifacts) else None,
        },
    )


def _sealed(piece: Piece, settings: InductorSettings) -> SealedArtifact:
    built = compile_piece(piece, settings)
    dynamic = "backed"
    try:
        _hold(built, settings)
    except ShapeLimited:
        # The limit is Inductor's and not the model's: without a hint it makes no such assumption.
        built = compile_piece(piece, replace(settings, unbacked=True))
        _hold(built, settings)
        dynamic = "unbacked"
    return SealedArtifact(piece.fingerprint, seal(built, piece.fingerprint), dynamic, len(built.kernels))


def _hold(built: BuiltPiece, settings: InductorSettings) -> None:
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
