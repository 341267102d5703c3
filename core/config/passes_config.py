"""The post-grad passes that can be switched: what was asked, and what the device and the level make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from graphkiln.core.config.facts import Facts
from graphkiln.core.config.fields import flag, integer, mapping, refuse_unknown
from graphkiln.core.config.trail import Trail

_WHAT = "pass_config"

# Their kernels exist for AMD GPUs only, which are no target.
_ROCM_ONLY = ("fuse_act_padding", "fuse_mla_dual_rms_norm", "fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache")
_CUDA_ONLY = ("enable_qk_norm_rope_fusion", "fuse_rope_kvcache_cat_mla", "fuse_allreduce_rms")

_MIB = 2**20
# Largest message in MiB for which one fused all-reduce beats two kernels, by capability and world size.
_ALLREDUCE_MIB: dict[int, dict[int, float]] = {
    90: {2: 64, 4: 2, 8: 0.5},
    100: {2: 64, 4: 32, 8: 1, 16: 64},
    103: {2: 64, 4: 64, 8: 4, 16: 64},
    107: {2: 64, 4: 64, 8: 2, 16: 64},
}


@dataclass(frozen=True)
class PassConfig:
    """The switches of the passes; None leaves one to the level, and `resolve` leaves no None.

    `fi_allreduce_fusion_max_size_mb` overrides the limit that is known for the device.
    """

    fuse_norm_quant: bool | None = None
    fuse_act_quant: bool | None = None
    fuse_attn_quant: bool | None = None
    fuse_allreduce_rms: bool | None = None
    fuse_act_padding: bool | None = None
    fuse_mla_dual_rms_norm: bool | None = None
    fuse_rope_kvcache: bool | None = None
    fuse_qk_norm_rope_kvcache: bool | None = None
    fuse_rope_kvcache_cat_mla: bool | None = None
    enable_qk_norm_rope_fusion: bool | None = None
    eliminate_noops: bool = True
    rope_kvcache_fusion_max_token_num: int = 256
    fi_allreduce_fusion_max_size_mb: float | None = None

    def __post_init__(self) -> None:
        for name in FLAGS:
            value = getattr(self, name)
            if value is not None or name == "eliminate_noops":
                object.__setattr__(self, name, flag(f"{_WHAT}.{name}", value))
        name = "rope_kvcache_fusion_max_token_num"
        integer(f"{_WHAT}.{name}", getattr(self, name), least=1)
        limit = self.fi_allreduce_fusion_max_size_mb
        if limit is not None and (type(limit) not in (int, float) or not limit > 0):
            raise ValueError(f"{_WHAT}.fi_allreduce_fusion_max_size_mb: {limit!r} is not a size above 0")

    @property
    def on(self) -> tuple[str, ...]:
        """The passes that are switched on."""
        return tuple(name for name in FLAGS if getattr(self, name))

    @property
    def unset(self) -> tuple[str, ...]:
        """The passes that are left to the level."""
        return tuple(name for name in FLAGS if getattr(self, name) is None)


_NUMBERS = ("rope_kvcache_fusion_max_token_num", "fi_allreduce_fusion_max_size_mb")
FLAGS = tuple(item.name for item in fields(PassConfig) if item.name not in _NUMBERS)


def passes_of(value: object) -> PassConfig:
    """Returns the configuration that a mapping of its fields means. Raises ValueError."""
    if isinstance(value, PassConfig):
        return value
    given: Mapping[str, Any] = mapping(_WHAT, value)
    refuse_unknown(_WHAT, given, [item.name for item in fields(PassConfig)])
    return PassConfig(**given)


def possible_passes(asked: PassConfig, facts: Facts, trail: Trail) -> PassConfig:
    """Returns the passes without those that the target cannot run, each said."""
    reasons = dict.fromkeys(_ROCM_ONLY, "it needs a ROCm target, and there is none")
    if facts.device != "cuda":
        reasons |= dict.fromkeys(_CUDA_ONLY, "it needs a CUDA target")
    for name, reason in reasons.items():
        if getattr(asked, name):
            trail.decide(f"{_WHAT}.{name}", True, False, reason)
    return replace(asked, **dict.fromkeys(reasons, False))


def allreduce_limit(passes: PassConfig, facts: Facts) -> int | None:
    """Returns the most tokens for which the all-reduce is fused, None where the pass is off or unlimited.

    Above the limit the piece is compiled without the fusion, so that it is an endpoint of the ranges.
    """
    if not passes.fuse_allreduce_rms or facts.tensor_parallel_size == 1 or not facts.hidden_size:
        return None
    size = passes.fi_allreduce_fusion_max_size_mb
    if size is None:
        size = _ALLREDUCE_MIB.get(facts.capability or 0, {}).get(facts.tensor_parallel_size)
    return None if size is None else int(size * _MIB) // (facts.hidden_size * facts.item_size)


def pass_values(passes: PassConfig) -> dict[str, Any]:
    """Returns what of the passes can change generated code: those that are on, and their numbers.

    The numbers of a pass that is off are left out: they change nothing.
    """
    values: dict[str, Any] = {"on": sorted(passes.on)}
    if passes.fuse_allreduce_rms:
        values["fi_allreduce_fusion_max_size_mb"] = passes.fi_allreduce_fusion_max_size_mb
    return values
