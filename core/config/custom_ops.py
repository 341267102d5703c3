"""Which operators run as kernels and which as plain PyTorch: a list of `all`, `none`, `+x`, `-x`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkiln.core.config.fields import items, refuse_unknown

BASES = ("all", "none")
# The ops that models are written with in vLLM, by the names under which they are switched there.
NAMES = (
    "rms_norm", "gemma_rms_norm", "rms_norm_gated", "fused_rms_norm_gated", "mixer2_gated_rms_norm",
    "layer_norm", "nemotron_layer_norm", "silu_and_mul", "silu_and_mul_with_clamp", "mul_and_silu", "gelu",
    "gelu_and_mul", "gelu_and_mul_sparse", "gelu_fast", "gelu_new", "gelu_tanh", "quick_gelu", "relu2",
    "xielu", "fatrelu_and_mul", "swigluoai_and_mul", "swiglustep_and_mul", "situ_and_mul", "quant_fp8",
    "rotary_embedding", "dual_chunk_rotary_embedding", "apply_rotary_emb", "grouped_topk",
    "unquantized_fused_moe", "modular_fused_moe", "conv2d", "conv3d", "mm_encoder_attn",
    "sparse_attn_indexer", "static_sink_attention", "chunk_gated_delta_rule", "hc_head", "hpc_rope_norm",
    "fused_mm_input_norm", "minimax_text01_rmsnorm_tp",
)  # fmt: skip


def checked_ops(value: object) -> tuple[str, ...]:
    """Returns the entries. Raises ValueError for what is no entry, an op that nobody knows (with the
    nearest that is one), a second base, or `+x` beside `-x`.
    """
    entries = items("custom_ops", value)
    for entry in entries:
        signed = isinstance(entry, str) and entry[:1] in ("+", "-") and len(entry) > 1
        if not signed and entry not in BASES:
            raise ValueError(f"custom_ops: {entry!r} is not all, none, +NAME or -NAME")
    if sum(entry in BASES for entry in entries) > 1:
        raise ValueError("custom_ops: all and none are two bases, and one is taken")
    refuse_unknown("custom_ops", (entry[1:] for entry in entries if entry not in BASES), NAMES, kind="op")
    for entry in entries:
        if entry[0] == "+" and f"-{entry[1:]}" in entries:
            raise ValueError(f"custom_ops: {entry} and -{entry[1:]} contradict each other")
    return entries


def with_op(entries: Sequence[str], name: str) -> tuple[str, ...]:
    """Returns the entries with `+name`, unless they already say something about `name`."""
    said = f"+{name}" in entries or f"-{name}" in entries
    return (*entries, *(() if said else (f"+{name}",)))


def with_base(entries: Sequence[str], base: str) -> tuple[str, ...]:
    """Returns the entries with a base: `base`, unless they have one."""
    return tuple(entries) if any(entry in BASES for entry in entries) else (*entries, base)


def is_enabled(entries: Sequence[str], name: str) -> bool:
    """Whether entries with a base turn `name` on; a minus wins over everything."""
    return f"-{name}" not in entries and ("all" in entries or f"+{name}" in entries)


def normal_form(entries: Sequence[str]) -> dict[str, Any]:
    """Returns what the entries say, in one way: the base, and the sorted names that do not follow it."""
    base = "all" if "all" in entries else "none"
    sign = "-" if base == "all" else "+"
    return {"base": base, "but": sorted({entry[1:] for entry in entries if entry[0] == sign})}
