"""What a pickle is made of once read without being run: values, names, things to be made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Of whatever a file says, this much of a text is enough to be shown or compared.
_LONGEST_NUMBER_BITS = 256


@dataclass(frozen=True)
class Global:
    """A name that the pickle wanted to import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, repr=False, slots=True)
class Made:
    """What a pickle wanted to make: by calling `by` with `args`, then `states` and `items` put into it.

    `by` is a `Global`, another `Made`, or any value that stood there; "persistent id" and "extension" for
    what the format gets from elsewhere. Two are equal only when they are the same one.
    """

    by: Any
    args: Any = ()
    states: list[Any] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The full name of what was to be called, where it has one."""
        return str(self.by) if isinstance(self.by, (Global, str)) else ""

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that its states would set, later ones over earlier ones."""
        found: dict[str, Any] = {}
        for state in self.states:
            # The pair of an instance's dict and its slots is a tuple of two.
            for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
                if isinstance(part, dict):
                    found |= {key: value for key, value in part.items() if isinstance(key, str)}
        return found

    def __repr__(self) -> str:
        return f"Made({self.name or type(self.by).__name__})"


def nested(value: Any) -> Iterator[Any]:
    """Yield a value and everything inside it, each object once, however deep and however often shared."""
    pending, seen = [value], set()
    while pending:
        one = pending.pop()
        if isinstance(one, (list, tuple, set, frozenset, dict, Made)):
            if id(one) in seen:
                continue
            seen.add(id(one))
        yield one
        if isinstance(one, dict):
            pending += [*one.values(), *one.keys()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            pending += one
        elif isinstance(one, Made):
            pending += [*one.items, *one.states, one.args, one.by]


def plain_text(value: Any) -> str:
    """Return a plain value as text, a tuple of them joined by dots; "" for anything else, and for None.

    What was to be made of one plain value counts as that value.
    """
    if isinstance(value, Made):
        value = value.args[0] if isinstance(value.args, tuple) and value.args else ""
    if isinstance(value, tuple):
        return ".".join(map(_scalar_text, value))
    return _scalar_text(value)


def _scalar_text(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER_BITS:
        return ""
    return str(value) if isinstance(value, (str, int, float)) else ""


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of what was to be made; none of anything else."""
    return value.attributes if isinstance(value, Made) else {}
