"""Values of a configuration in one form for one meaning, so that they can stand in a key.

A value is taken by the first rule that fits: plain scalars; an enumeration member by its class and
value; a class by its name; an object by what its `uuid()` says; a dtype by its name; bytes as hex; a
path resolved; an object by its `to_json_string()`, else `to_dict()`; a dataclass by its class and
fields; mappings, sets and sequences by their members, the first two in order of their text. What has
no such form is NotCanonical, and the start is a bypass that names it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import Any

from graphkiln.cache.errors import NotCanonical


def normalise(value: object, where: str = "") -> Any:
    """Returns `value` as None, bool, int, float, str and tuples of them. Raises NotCanonical.

    `where` is the dotted path that an error names. Lists equal tuples, order does not matter in a set
    or a mapping. A number that is not finite is passed on: canonical JSON refuses it by name.
    """
    return _normal(value, where, ())


def _normal(value: Any, where: str, open_containers: tuple[int, ...]) -> Any:
    scalar = _scalar(value)
    if scalar is not None or value is None:
        return scalar
    if id(value) in open_containers:
        raise NotCanonical(where, "it contains itself")
    inside = (*open_containers, id(value))
    kind = type(value)
    if isinstance(value, enum.Enum):
        return (_name(kind), _normal(value.value, where, inside))
    if isinstance(value, type):
        return _name(value)
    if callable(getattr(value, "uuid", None)):
        return _own(value, "uuid", where)
    if callable(value):
        raise NotCanonical(where, "a callable has no canonical form unless it has a uuid()")
    # By name, because reading a configuration imports no torch.
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, PurePath):
        return str(Path(value).expanduser().resolve())
    if callable(getattr(value, "to_json_string", None)):
        return _json_form(value, where, inside)
    if dataclasses.is_dataclass(value):
        pairs = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
        members = tuple((name, _normal(inner, _under(where, name), inside)) for name, inner in sorted(pairs))
        return (_name(kind), members)
    return _members(value, where, inside)


def _scalar(value: Any) -> bool | int | float | str | None:
    """Returns a plain scalar of exactly Python's own types, None for anything else."""
    if isinstance(value, bool):
        return value
    # Not int(value): a subclass may answer that with something else, as str(member) does with a name.
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else None


def _members(value: Any, where: str, inside: tuple[int, ...]) -> tuple[Any, ...]:
    if isinstance(value, Mapping):
        pairs = [(str(key), _normal(inner, _under(where, key), inside)) for key, inner in value.items()]
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise NotCanonical(where, f"two of its keys are written {name!r}")
        return tuple(sorted(pairs, key=lambda pair: pair[0]))
    if isinstance(value, Set):
        # The text of the normal form: that of a nested set would depend on the process.
        return tuple(sorted(repr(_normal(inner, where, inside)) for inner in value))
    if isinstance(value, Sequence):
        return tuple(_normal(inner, f"{where}[{index}]", inside) for index, inner in enumerate(value))
    raise NotCanonical(where, f"a value of type {_name(type(value))} has no canonical form")


def _json_form(value: Any, where: str, inside: tuple[int, ...]) -> Any:
    try:
        return str(value.to_json_string())
    except (TypeError, ValueError) as error:
        if not callable(getattr(value, "to_dict", None)):
            raise NotCanonical(where, f"its to_json_string() raised {type(error).__name__}") from error
    except Exception as error:
        raise NotCanonical(where, f"its to_json_string() raised {type(error).__name__}") from error
    return _normal(value.to_dict(), where, inside)


def _own(value: Any, method: str, where: str) -> str:
    answer = getattr(value, method)()
    if type(answer) is not str:
        raise NotCanonical(where, f"its {method}() is of type {_name(type(answer))}, not str")
    return answer


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _under(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)
