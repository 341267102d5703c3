"""What a configuration may ask for and no start does yet: refused by name instead of quietly left out."""

from __future__ import annotations

from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import CompilationMode, DynamicShapesType

_MODES = (CompilationMode.NONE, CompilationMode.VLLM_COMPILE)


def not_carried(effective: EffectiveConfig) -> str | None:
    """Returns the first setting, as FIELD=VALUE, that is understood and not carried out yet."""
    shapes = effective.dynamic_shapes
    asked = {
        f"mode={effective.mode.name}": effective.mode not in _MODES,
        f"backend={effective.backend}": effective.compiles and effective.backend != "inductor",
        "use_inductor_graph_partition=true": effective.compiles and effective.use_inductor_graph_partition,
        f"dynamic_shapes_config.type={shapes.type.value}": shapes.type is not DynamicShapesType.BACKED,
        "dynamic_shapes_config.evaluate_guards=true": shapes.evaluate_guards,
        "dynamic_shapes_config.assume_32_bit_indexing=true": shapes.assume_32_bit_indexing,
    }
    return next((setting for setting, is_asked in asked.items() if is_asked), None)
