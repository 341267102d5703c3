"""What a compile tells torch's structured trace (TORCH_TRACE), for tlparse to show beside torch's own.

Three artifacts of JSON: `graphkiln_split`, `graphkiln_pieces`, `graphkiln_ranges`. They carry the id
of the Dynamo trace that the part came from. Without a trace log nothing is computed.

Tried on torch 2.13.0. Private: `torch._logging._internal.trace_structured`, `torch._guards.compile_context`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch._guards import CompileContext, compile_context
from torch._logging._internal import trace_structured

if TYPE_CHECKING:
    from graphkiln.core.compile.split import SplitGraph


def trace_split(
    compile_id: Any, split: SplitGraph, piece_of: Mapping[str, int], splitting_ops: Sequence[str]
) -> None:
    """Emits `graphkiln_split`: the parts in call order, each with its piece or its eager ops."""

    def parts() -> list[dict[str, Any]]:
        return [
            {
                "name": part.name,
                "piece": None if part.splitting else piece_of[part.name],
                "eager": _ops(part.module) if part.splitting else [],
                "nodes": len(part.module.graph.nodes),
            }
            for part in split.parts
        ]

    _emit(compile_id, "graphkiln_split", lambda: {"splitting_ops": list(splitting_ops), "parts": parts()})


def trace_pieces(compile_id: Any, pieces: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
    """Emits `graphkiln_pieces`: each distinct piece as compiled."""
    _emit(compile_id, "graphkiln_pieces", lambda: {"pieces": list(pieces())})


def trace_ranges(compile_id: Any, ranges: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
    """Emits `graphkiln_ranges`: the ranges of token counts, each with the pieces that serve it."""
    _emit(compile_id, "graphkiln_ranges", lambda: {"ranges": list(ranges())})


def _ops(module: Any) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def _emit(compile_id: Any, name: str, payload: Callable[[], Any]) -> None:
    context = contextlib.nullcontext() if compile_id is None else compile_context(CompileContext(compile_id))
    with context:
        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": name, "encoding": "json"},
            payload_fn=lambda: json.dumps(payload(), indent=1),
            expect_trace_id=compile_id is not None,
        )
