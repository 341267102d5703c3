"""Which passes run, in what order, and what the key holds of them; known without torch or a compile.

    switchable passes (a fusion has its place here), the user's own, cleanup, fix_functionalization

The two at the end always run: the user's passes may leave dead nodes and any order, and what writes in
place comes last, so that every pass before it sees a functional graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.errors import SourceUnreadable
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.modules import locate
from graphkiln.core.errors import CompileError
from graphkiln.core.passes.sources import import_closure, read_module

_HERE = "graphkiln.core.passes"
_OURS = "graphkiln"

# The switch of `PassConfig` is the pass's name.
SWITCHED: Mapping[str, str] = {"eliminate_noops": f"{_HERE}.noops:eliminate_noops"}
_ALWAYS: Mapping[str, str] = {
    "cleanup": f"{_HERE}.cleanup:cleanup",
    "fix_functionalization": f"{_HERE}.functionalization:fix_functionalization",
}


@dataclass(frozen=True)
class PassRun:
    """What one pass did to one piece: seconds, and how many places it changed (None: it does not say)."""

    name: str
    seconds: float
    matches: int | None


@dataclass(frozen=True)
class Pipeline:
    """The passes of a start: the switches that are `on`, and the user's own passes by importable name.

    `planned` is the digest of the factor that the start's key was made of, None where it has no key.
    """

    on: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    planned: str | None = None

    def steps(self) -> dict[str, str]:
        """Returns the passes that run, name to importable name, in order."""
        switched = {name: where for name, where in SWITCHED.items() if name in self.on}
        return {**switched, **{name: name for name in self.user}, **_ALWAYS}

    def factor(self) -> dict[str, Any]:
        """Returns what the compiler factor holds: all passes in order, and the sources behind them.

        Switches are not in it, they are configuration. Raises CompileError for a pass of the user's
        that is not there as Python source.
        """
        for name in self.user:
            _require_source(name)
        places = [*SWITCHED.values(), *self.user, *_ALWAYS.values()]
        modules = [f"{_HERE}.manager", *(place.partition(":")[0] for place in places)]
        own = {_OURS, *(name.partition(":")[0].partition(".")[0] for name in self.user)}
        try:
            sources = import_closure(modules, own)
        except SourceUnreadable as error:
            raise CompileError("inductor_passes", str(error), "make that file readable Python") from error
        return {"order": [*SWITCHED, *self.user, *_ALWAYS], "sources": sources}

    def identity(self, smallest: int, largest: int) -> str:
        """Returns the digest of passes, switches, range and sources that Inductor's own caches key on.

        Raises CompileError when the sources are no longer those of the start's key.
        """
        factor = self.factor()
        if self.planned not in (None, digest(factor)):
            raise CompileError(
                "passes", "a source file of a pass changed while the model was traced", "run it again"
            )
        return digest({"on": sorted(self.on), "range": [smallest, largest], **factor})


def _require_source(name: str) -> None:
    module, _, attribute = name.partition(":")
    path = locate(module)
    if path is None:
        raise CompileError(
            f"pass {name}",
            f"no Python source of a module {module} can be imported from here",
            "give module:name of a .py file on the path (PYTHONPATH), so that its text can be in the key",
        )
    try:
        names = read_module(module, path).names
    except SourceUnreadable as error:
        raise CompileError(f"pass {name}", str(error), "make that file readable Python") from error
    if names is not None and attribute not in names:
        raise CompileError(
            f"pass {name}", f"{module} defines no {attribute}", "name a class or a function of that module"
        )
