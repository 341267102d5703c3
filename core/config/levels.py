"""The optimization levels: what each sets where the user set nothing. O3 is O2 so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from graphkiln.core.config.custom_ops import is_enabled
from graphkiln.core.config.facts import Facts
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode
from graphkiln.core.config.passes_config import PassConfig
from graphkiln.core.config.splitting import cuts_kv_cache_update
from graphkiln.core.config.trail import Trail


@dataclass(frozen=True)
class Situation:
    """What a level looks at: the parts of the configuration that are settled before it."""

    facts: Facts
    mode: CompilationMode
    backend: str
    custom_ops: tuple[str, ...]
    splitting_ops: tuple[str, ...] | None
    partition: bool
    fuse_attn_quant: bool

    @property
    def native_norm(self) -> bool:
        """Whether rms_norm is plain PyTorch: where Inductor compiles it, and where no kernel is at hand."""
        compiles = self.mode is not CompilationMode.NONE and self.backend == "inductor"
        return compiles or self.facts.device != "cuda"


def _norm_quant(situation: Situation) -> bool:
    ops = situation.custom_ops
    return not situation.native_norm or is_enabled(ops, "rms_norm") or is_enabled(ops, "quant_fp8")


def _act_quant(situation: Situation) -> bool:
    ops = situation.custom_ops
    kernels = is_enabled(ops, "silu_and_mul") or is_enabled(ops, "quant_fp8")
    return kernels or situation.facts.quantisation == "nvfp4"


def _allreduce_rms(situation: Situation) -> bool:
    facts = situation.facts
    known = facts.blackwell or facts.capability == 90
    return not facts.batch_invariant and facts.tensor_parallel_size > 1 and facts.flashinfer and known


def _rope_kvcache_cat_mla(situation: Situation) -> bool:
    return situation.facts.device == "cuda" and not cuts_kv_cache_update(
        situation.splitting_ops,
        partition=situation.partition,
        fuse_attn_quant=situation.fuse_attn_quant,
    )


# A pass that stands in no row is off.
_O1: Mapping[str, Callable[[Situation], bool]] = {
    "fuse_norm_quant": _norm_quant,
    "fuse_act_quant": _act_quant,
}
_O2: Mapping[str, Callable[[Situation], bool]] = {
    **_O1,
    "fuse_allreduce_rms": _allreduce_rms,
    "fuse_rope_kvcache_cat_mla": _rope_kvcache_cat_mla,
}
_PASSES: tuple[Mapping[str, Callable[[Situation], bool]], ...] = ({}, _O1, _O2, _O2)
_GRAPHS = (
    CUDAGraphMode.NONE,
    CUDAGraphMode.PIECEWISE,
    CUDAGraphMode.FULL_AND_PIECEWISE,
    CUDAGraphMode.FULL_AND_PIECEWISE,
)


def level_mode(level: int) -> CompilationMode:
    """Returns the mode of a level: O0 compiles nothing."""
    return CompilationMode.NONE if level == 0 else CompilationMode.VLLM_COMPILE


def level_graphs(level: int) -> CUDAGraphMode:
    """Returns the CUDA graph mode of a level."""
    return _GRAPHS[level]


def level_passes(level: int, asked: PassConfig, situation: Situation, trail: Trail) -> PassConfig:
    """Returns the passes with every unset one decided; what the user set stays, False too."""
    rules = _PASSES[level]
    found = {name: name in rules and rules[name](situation) for name in asked.unset}
    for name, on in found.items():
        # Where nothing is compiled no pass runs, and what a switch stands at is no news.
        if on and situation.mode is not CompilationMode.NONE:
            trail.decide(f"pass_config.{name}", None, True, f"optimization level {level}")
    return replace(asked, **found)
