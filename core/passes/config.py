"""The names of the user's own passes."""

from __future__ import annotations

from typing import Any


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
