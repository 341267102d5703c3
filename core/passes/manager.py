"""Runs the passes on a graph that Inductor is about to lower, and notes what each did.

Tried on torch 2.13.0. It stands under `post_grad_custom_post_pass`: after Inductor's own pattern
passes and before it reorders, reinplaces and lowers. A graph that holds others (a branch, a loop body)
brings each of them here; the numbers are sums.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from graphkiln.core.errors import CompileError
from graphkiln.core.passes.pipeline import PassRun, Pipeline

Watch = Callable[[str, fx.Graph], None]


class PassManager(CustomGraphPass):
    """The passes of one compile: `runs` says afterwards what each did.

    `watch(name, graph)` is called with the graph as it came, under the name `before`, and after every
    pass. `last` are passes that the process itself had put under the same hook; they run behind ours.
    `identity` is set by who knows the range.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        watch: Watch | None = None,
        last: Sequence[Callable[[fx.Graph], Any]] = (),
    ) -> None:
        self.identity = ""
        self._watch = watch
        self._last = tuple(last)
        self._user = frozenset(pipeline.user)
        self._passes = [(name, load_pass(name, where)) for name, where in pipeline.steps().items()]
        self._seconds = {name: 0.0 for name, _ in self._passes}
        self._matches: dict[str, int | None] = {}

    def uuid(self) -> str | None:
        """Returns what Inductor's caches tell two pipelines apart by; None lets it cache nothing."""
        return self.identity or None

    @property
    def runs(self) -> tuple[PassRun, ...]:
        """What each pass did so far, in order; none before a graph came."""
        return tuple(
            PassRun(name, self._seconds[name], self._matches[name])
            for name, _ in self._passes
            if name in self._matches
        )

    def __call__(self, graph: fx.Graph) -> None:
        """Runs every pass in order. Raises CompileError that names the pass which failed."""
        self._see("before", graph)
        for name, run in self._passes:
            began = time.perf_counter()
            try:
                matches = run(graph)
            except CompileError:
                raise
            except Exception as error:
                raise self._failed(name, error) from error
            self._seconds[name] += time.perf_counter() - began
            self._matches[name] = _sum(self._matches.get(name, 0), matches)
            self._see(name, graph)
        try:
            graph.lint()
        except Exception as error:
            raise self._failed(", ".join(sorted(self._user)) or "graphkiln", error) from error
        for run in self._last:
            run(graph)

    def _see(self, name: str, graph: fx.Graph) -> None:
        if self._watch is not None:
            self._watch(name, graph)

    def _failed(self, name: str, error: Exception) -> CompileError:
        first = (str(error).strip().splitlines() or [""])[0]
        remedy = "correct it, or leave it out of inductor_passes" if self._user else "report this model"
        return CompileError(f"pass {name}", f"{type(error).__name__}: {first}", remedy)


def _sum(before: int | None, matches: Any) -> int | None:
    if before is None or not isinstance(matches, int):
        return None
    return before + int(matches)


def load_pass(name: str, where: str) -> Callable[[fx.Graph], Any]:
    """Returns the pass at `module:name`: a function of the graph, or an instance of a class that is called.

    Raises CompileError, by name, for what cannot be imported, made or called.
    """
    module, _, attribute = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        made = found() if isinstance(found, type) else found
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise CompileError(
            f"pass {name}", f"it cannot be imported: {type(error).__name__}: {first}", "correct its module"
        ) from error
    if not callable(made):
        raise CompileError(
            f"pass {name}", f"a {type(made).__name__} cannot be called", "give it __call__(self, graph)"
        )
    return made  # type: ignore[no-any-return]
