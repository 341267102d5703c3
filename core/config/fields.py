"""Reading the values of a configuration: each function returns the checked value or raises ValueError.

The message is one line that names the field, what came and what is taken.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

Named = TypeVar("Named", bound=enum.Enum)


def refuse_unknown(what: str, given: Iterable[str], known: Collection[str], *, kind: str = "field") -> None:
    """Raises ValueError for the first name that is no `kind` of `what`, with the nearest one that is."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"{kind}s are " + ", ".join(known)
            raise ValueError(f"{what} has no {kind} {name!r}: {hint}")


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {value!r} is not a text")
    return value


def flag(name: str, value: object) -> bool:
    """Returns a bool; `True` and `FALSE` as texts too, because a command line brings Python's spelling."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(f"{name}: {value!r} is not true or false")
    return value


def integer(name: str, value: object, *, least: int) -> int:
    # bool is an int to Python, and `compile_sizes=[true]` is a mistake, not a 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name}: {value!r} is not an integer")
    if value < least:
        raise ValueError(f"{name}: {value} is below {least}")
    return value


def items(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name}: {value!r} is not a list, which is written [A, B]")
    return tuple(value)


def mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name}: {value!r} is not a mapping, which is written {{NAME: VALUE}}")
    return value


def member(name: str, value: object, kind: type[Named]) -> Named:
    """Returns the member of `kind` that a text names in any case; members pass through."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    good = ", ".join(item.value if isinstance(item.value, str) else item.name for item in kind)
    raise ValueError(f"{name}: {value!r} is not one of {good}")
