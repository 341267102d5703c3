"""What a user says about passes: the switches of those that can be switched, and passes of his own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class PassConfig:
    """The switches; names and defaults are those that vLLM users know."""

    eliminate_noops: bool = True

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, bool):
                raise ValueError(f"pass_config.{name}: {value!r} is not true or false")

    @property
    def on(self) -> tuple[str, ...]:
        """The switches that are on."""
        return tuple(name for name, value in vars(self).items() if value)

    @classmethod
    def from_user(cls, value: object) -> PassConfig:
        """Returns the switches that a mapping `{name: bool}` means.

        Raises ValueError, in one line, for an unknown name (with the nearest one) or a bad value.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"pass_config: {value!r} is not a mapping of passes to true or false")
        known = [item.name for item in fields(cls)]
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else "passes are " + ", ".join(known)
                raise ValueError(f"pass_config has no pass {name!r}: {hint}")
        return cls(**value)


def user_passes(value: Any) -> tuple[str, ...]:
    """Returns the user's own passes, `module:Class` or `module:function` each, in the order given.

    One text is one pass. Raises ValueError for anything of another form, and for a pass named twice.
    """
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"inductor_passes: {value!r} is not a list of module:name")
    for name in names:
        if not isinstance(name, str) or not _is_importable_name(name):
            raise ValueError(f"inductor_passes: {name!r} is not module:Class or module:function")
    if len(set(names)) < len(names):
        raise ValueError(f"inductor_passes: {max(names, key=names.count)!r} is named twice")
    return tuple(names)


def _is_importable_name(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
