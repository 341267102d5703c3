"""The GRAPHKILN_* environment variables: all of them, and which of them can change generated code.

A variable is part of the key only when this registry says so. Whatever is not registered cannot
make a key differ, and a name that nobody knows is reported instead of ignored.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.errors import BadVariable

PREFIX = "GRAPHKILN_"


@dataclass(frozen=True)
class Variable:
    """One variable: `parse` turns its text into a value or raises ValueError naming what it takes."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    in_key: bool
    doc: str


def _switch(text: str) -> bool:
    try:
        return {"0": False, "1": True}[text.strip()]
    except KeyError:
        raise ValueError("0 or 1") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    # `nan` compares false with everything, so it fails here too.
    if not 0 <= seconds < 10**9:
        raise ValueError("a number of seconds, 0 or more")
    return seconds


def _log_level(text: str) -> str:
    level = text.strip().upper()
    if level not in _LOG_LEVELS:
        raise ValueError(", ".join(_LOG_LEVELS))
    return level


_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

VARIABLES = {
    variable.name: variable
    for variable in (
        Variable("GRAPHKILN_CACHE_ROOT", None, str, False, "folder of the cache"),
        Variable("GRAPHKILN_DISABLE_COMPILE_CACHE", False, _switch, False, "1 reads and writes no cache"),
        Variable("GRAPHKILN_USE_AOT_COMPILE", True, _switch, False, "0 neither reads nor writes AOT files"),
        Variable("GRAPHKILN_FORCE_AOT_LOAD", False, _switch, False, "1 ends a start that no AOT file serves"),
        Variable("GRAPHKILN_LOG_LEVEL", "WARNING", _log_level, False, "what is logged to stderr"),
        Variable("GRAPHKILN_LOCK_TIMEOUT", 1800.0, _seconds, False, "longest wait for a lock, in seconds"),
        Variable(
            "GRAPHKILN_TRASH_GRACE", 3600.0, _seconds, False, "how long removed entries are kept, in seconds"
        ),
        Variable("GRAPHKILN_HOST_LABEL", None, str, False, "name of this host in the ledger of starts"),
        # Graphs with breaks compile nothing, so that no key is made under it.
        Variable(
            "GRAPHKILN_BREAKABLE_GRAPHS",
            None,
            _switch,
            False,
            "1 records CUDA graphs of the model's own code, with breaks at attention; 0 never does",
        ),
        Variable("GRAPHKILN_CPP_FAST_MATH", False, _switch, True, "1 lets C++ kernels reorder arithmetic"),
    )
}


def read(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """Return the parsed value of a registered variable; unset and empty both give the default."""
    variable = VARIABLES[name]
    text = environ.get(name, "")
    if not text:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise BadVariable(name, text, str(error)) from None


def env_factor(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return name and value of every variable that is part of the key, defaults included."""
    return {name: read(name, environ) for name, variable in VARIABLES.items() if variable.in_key}


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str | None]]:
    """Return each GRAPHKILN_* name that is not registered, with the nearest name that is."""
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in VARIABLES)
    return [(name, next(iter(difflib.get_close_matches(name, VARIABLES, n=1)), None)) for name in unknown]
