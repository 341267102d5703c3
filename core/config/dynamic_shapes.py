"""How the token count is traced, and how its guards are treated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from graphkiln.core.config.fields import flag, mapping, member, refuse_unknown
from graphkiln.core.config.modes import DynamicShapesType

_WHAT = "dynamic_shapes_config"


@dataclass(frozen=True)
class DynamicShapesConfig:
    """The kind of symbol, and two switches.

    `evaluate_guards` is a debug mode: shape guards are kept and a call that would break one fails.
    `assume_32_bit_indexing` lets Inductor index with 32 bits.
    """

    type: DynamicShapesType = DynamicShapesType.BACKED
    evaluate_guards: bool = False
    assume_32_bit_indexing: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", member(f"{_WHAT}.type", self.type, DynamicShapesType))
        for name in ("evaluate_guards", "assume_32_bit_indexing"):
            object.__setattr__(self, name, flag(f"{_WHAT}.{name}", getattr(self, name)))
        # An unbacked symbol makes no guards, so that there is nothing to evaluate.
        if self.evaluate_guards and self.type is DynamicShapesType.UNBACKED:
            raise ValueError(f"{_WHAT}.evaluate_guards: unbacked shapes have no guards to evaluate")

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "type": self.type.value}


def dynamic_shapes_of(value: object) -> DynamicShapesConfig:
    """Returns the configuration that a mapping of its fields means. Raises ValueError."""
    if isinstance(value, DynamicShapesConfig):
        return value
    given: Mapping[str, Any] = mapping(_WHAT, value)
    refuse_unknown(_WHAT, given, [item.name for item in fields(DynamicShapesConfig)])
    return DynamicShapesConfig(**given)
