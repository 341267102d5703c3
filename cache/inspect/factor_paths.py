"""The values that a dotted path such as `compiler.target.isa` leads to in the four factors.

Names inside a factor may hold dots themselves (Inductor's options, module names), so a path is tried
in every way of cutting it that leads somewhere.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkiln.cache.factors.key import FACTOR_NAMES

# Short names for what lies deep: the modules and the functions that were traced.
CODE_MODULE, CODE_FUNCTION = "code.module", "code.function"
_MOST_NAMES = 12


def factor_values(factors: Mapping[str, Any], path: str) -> list[Any]:
    """Return the plain values at `path`: one, those of a list or mapping, or none where there is nothing."""
    if path == CODE_MODULE:
        return sorted({module for functions in _functions(factors) for module in functions})
    if path == CODE_FUNCTION:
        return sorted(
            f"{module}.{name}"
            for functions in _functions(factors)
            for module, names in functions.items()
            if isinstance(names, Mapping)
            for name in names
        )
    return [leaf for found in _reached(factors, _parts(path)) for leaf in _leaves(found)]


def names_near(factors: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return the names that could stand where `path` stops leading anywhere, the nearest ones first."""
    parts = _parts(path)
    for length in range(len(parts) - 1, 0, -1):
        names = {
            name
            for found in _reached(factors, parts[:length])
            if isinstance(found, Mapping)
            for name in found
        }
        if names:
            start = ".".join(parts[:length])
            extra = {"module", "function"} if start == "code" else set()
            wanted = ".".join(parts[length:])
            near = difflib.get_close_matches(wanted, names | extra, n=_MOST_NAMES, cutoff=0.5)
            rest = sorted((names | extra) - set(near))
            return tuple(f"{start}.{name}" for name in [*near, *rest][:_MOST_NAMES])
    return FACTOR_NAMES


def _parts(path: str) -> list[str]:
    return re.sub(r"\[(\d+)\]", r".\1", path).split(".")


def _functions(factors: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield each part's traced functions: {module: {function: digest}}."""
    code = factors.get("code")
    for value in [code, *(code.values() if isinstance(code, Mapping) else ())]:
        functions = value.get("functions") if isinstance(value, Mapping) else None
        if isinstance(functions, Mapping):
            yield functions


def _reached(value: Any, parts: Sequence[str]) -> Iterator[Any]:
    if not parts:
        yield value
    elif isinstance(value, Mapping):
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            if name in value:
                yield from _reached(value[name], parts[length:])
    elif isinstance(value, (list, tuple)) and parts[0].isdecimal() and int(parts[0]) < len(value):
        yield from _reached(value[int(parts[0])], parts[1:])


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
