"""What a configuration may ask for and no start does yet: refused by name instead of quietly left out."""

from __future__ import annotations

from graphkiln.core.config.effective import EffectiveConfig


def not_carried(effective: EffectiveConfig) -> str | None:
    """Returns the first setting, as FIELD=VALUE, that is understood and not carried out yet."""
    asked = {
        "use_inductor_graph_partition=true": effective.compiles and effective.use_inductor_graph_partition,
    }
    return next((setting for setting, is_asked in asked.items() if is_asked), None)
