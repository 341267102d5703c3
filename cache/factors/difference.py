"""A named difference between what was recorded and what is now, and how to find them in values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard

Kind: TypeAlias = Literal["changed", "added", "removed", "cannot verify"]


@dataclass(frozen=True)
class Difference:
    """One fact that is not as it was recorded.

    `factor` is env, config, code or compiler; `name` says which fact of it; `then` and `now` are
    the two values, None where there is none; `relevant` says whether it can change generated code;
    `remedy` is what to type or do to remove it, "" where nothing can be done.
    """

    factor: str
    name: str
    then: Any
    now: Any
    relevant: bool = True
    remedy: str = ""
    kind: Kind = "changed"


def differences(factor: str, then: object, now: object) -> list[Difference]:
    """Return the leaves in which two values of one factor differ, each by its dotted name."""
    return list(_leaves(factor, "", then, now))


def _leaves(factor: str, name: str, then: object, now: object) -> Iterator[Difference]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted({*then, *now}):
            path = f"{name}.{key}" if name else key
            if key not in now:
                yield Difference(factor, path, then[key], None, kind="removed")
            elif key not in then:
                yield Difference(factor, path, None, now[key], kind="added")
            else:
                yield from _leaves(factor, path, then[key], now[key])
    elif _is_list(then) and _is_list(now):
        if len(then) != len(now):
            yield Difference(factor, name, then, now)
            return
        for index, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from _leaves(factor, f"{name}[{index}]", one, other)
    # 1, 1.0 and True are equal in Python and three different values of a factor.
    elif type(then) is not type(now) or then != now:
        yield Difference(factor, name, then, now)


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))
