"""At which ops the traced graph is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

from graphkiln.core.config.fields import items
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode
from graphkiln.core.config.trail import Trail

# Attention reads what differs from step to step, and CUDA graphs cannot: it stays between the pieces.
ATTENTION_OPS = ("graphkiln::unified_attention_with_output",)
# Their layer name is an argument, which would make every piece differ from its twin in another layer.
KV_CACHE_UPDATE_OPS = ("graphkiln::unified_kv_cache_update",)


def checked_ops(value: object) -> tuple[str, ...]:
    """Returns a list of op names. Raises ValueError for one that is not `namespace::op`."""
    names = items("splitting_ops", value)
    for name in names:
        if not isinstance(name, str) or name.count("::") != 1:
            raise ValueError(f"splitting_ops: {name!r} is not namespace::op")
    return names


def cuts_attention(ops: Sequence[str]) -> bool:
    """Whether the graph is cut at attention."""
    return any(op in ATTENTION_OPS for op in ops)


def cuts_kv_cache_update(asked: Sequence[str] | None, *, partition: bool, fuse_attn_quant: bool) -> bool:
    """Whether the graph is, or by default will be, cut where the KV cache is written."""
    if asked is None:
        return not partition and not fuse_attn_quant
    return any(op in KV_CACHE_UPDATE_OPS for op in asked)


def split(
    asked: Sequence[str] | None,
    mode: CompilationMode,
    graphs: CUDAGraphMode,
    trail: Trail,
    *,
    partition: bool,
    fuse_attn_quant: bool,
) -> tuple[tuple[str, ...], CUDAGraphMode]:
    """Returns the splitting ops and the CUDA graph mode that they leave possible.

    By default attention and the writes of the KV cache cut. With Inductor's own partitioning the
    writes need not, as one graph is compiled whole. Fusing quantisation into attention wants both in
    one piece, so that nothing cuts and what was piecewise becomes FULL. Raises ValueError where the
    user asked for that fusion and for a cut at attention.
    """
    if mode is not CompilationMode.VLLM_COMPILE:
        return (() if asked is None else tuple(asked)), graphs
    if fuse_attn_quant and not partition:
        if asked is not None and cuts_attention(asked):
            raise ValueError(
                "splitting_ops: a cut at attention keeps pass_config.fuse_attn_quant from its pattern: "
                "leave one of the two out, or set use_inductor_graph_partition"
            )
        if asked is None:
            reason = "pass_config.fuse_attn_quant needs attention inside a piece"
            trail.decide("splitting_ops", None, [], reason)
            if graphs.piecewise:
                graphs = trail.decide_mode(graphs, CUDAGraphMode.FULL, reason)
            return (), graphs
    if asked is None:
        return (ATTENTION_OPS if partition else ATTENTION_OPS + KV_CACHE_UPDATE_OPS), graphs
    if not asked and graphs.piecewise:
        left = CUDAGraphMode.FULL if graphs is CUDAGraphMode.FULL_AND_PIECEWISE else CUDAGraphMode.NONE
        graphs = trail.decide_mode(graphs, left, "splitting_ops is empty: there is one piece, with attention")
    return tuple(asked), graphs
