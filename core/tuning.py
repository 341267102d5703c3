"""Choosing between the configurations of an entry's kernels on the device, once and for all to be kept."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphkiln.cache.store.entries import Entry
from graphkiln.core.choices import Choice, Choices
from graphkiln.core.compile.check import check_counts
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.compile.sealed import SealedPiece
from graphkiln.core.compile.sealed_triton import SealedTriton
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.ranges import CompileRange
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice, NothingToTune
from graphkiln.core.graphs.model_graphs import compiled_parts
from graphkiln.core.parts import call_context
from graphkiln.core.phases import Phases
from graphkiln.core.publication import tool_versions
from graphkiln.core.report import Progress, Silent, StartReport
from graphkiln.core.runner import Runner


@dataclass(frozen=True)
class Tuned:
    """The choices that were made, and the file they are in.

    `timed` are the token counts of the calls that each kernel's choice rests on, of all the `counts` that
    calls were made with. `untimed` are the names of kernels, by identity, that have several configurations
    and that no call ran.
    """

    choices: Choices
    timed: dict[str, tuple[int, ...]]
    configs: dict[str, int]
    counts: tuple[int, ...]
    start: StartReport
    path: Path
    untimed: Mapping[str, str]


@dataclass
class _Timed:
    """How much longer than the fastest each configuration of one kernel took, by the tokens of the call."""

    kernel: SealedTriton
    slower: dict[int, dict[int, float]] = field(default_factory=dict)

    def best(self) -> int:
        """Returns the configuration that lost least over all calls; the first of equals."""
        calls = self.slower.values()
        together = set.intersection(*(set(one) for one in calls))
        return min(sorted(together), key=lambda index: sum(one[index] for one in calls))


def tune(
    deployment: Deployment,
    config: CompilationConfig | None,
    path: Path,
    *,
    cache_root: Path | str | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Returns the choices for a deployment's kernels of several configurations, after writing them to `path`.

    Each is timed on the arguments of real calls of several token counts. Raises NoDevice where the device
    is not here, NothingToTune where what was loaded is not compiled, or was built with choices made
    before, and what loading raises; nothing is written then.
    """
    # Here and not above: a start needs none of this.
    from graphkiln.core.start import load_built
    from graphkiln.core.target.named import find_target

    target = find_target(deployment.target or deployment.device)
    lacks = target.missing_here()
    if target.kind != "cuda" or lacks:
        why = f"it needs {', '.join(lacks)}" if lacks else "kernels for a CPU have one configuration"
        raise NoDevice(f"target {target.name}", f"nothing can be timed: {why}", "tune on the device")
    runner, plan = load_built(deployment, config, cache_root=cache_root, progress=progress)
    phases = Phases(progress or Silent())
    parts = compiled_parts(runner.plain_forward)
    assert runner.report is not None
    _require_open(f"tune {plan.label}", parts, runner.report.entry_path)
    counts = _counts(parts, plan.largest)
    several = _several(parts)
    with phases.phase("tune"):
        timed = _timed(runner, several, counts)
    kernels = {name: Choice(one.kernel.title, one.kernel.configs[one.best()]) for name, one in timed.items()}
    choices = Choices(f"choices {path}", target.as_factor(), tool_versions(), kernels)
    _write(path, choices)
    return Tuned(
        choices,
        {name: tuple(one.slower) for name, one in timed.items()},
        {name: len(one.kernel.configs) for name, one in timed.items()},
        counts,
        runner.report,
        path,
        {one.name: one.title for one in several if one.name not in timed},
    )


def _require_open(what: str, parts: Sequence[CompiledPart], entry: Path | None) -> None:
    """Raises NothingToTune where there is no compiled part, or the entry was built with choices."""
    if not parts:
        reason = "its forward is not compiled, so that no kernel of it has configurations"
        raise NothingToTune(what, reason, "tune what is compiled: without -O0, --enforce-eager and the like")
    if entry is not None and Entry(entry).header.get("choices") is not None:
        reason = f"entry {entry.name} was built with --choices: one configuration of each kernel is left"
        raise NothingToTune(
            what, reason, f"graphkiln cache rm {entry.name}, or tune with another --cache-root"
        )


def _counts(parts: Sequence[CompiledPart], largest: int) -> tuple[int, ...]:
    """Returns the token counts to time at: a check's, and of every range the largest that it serves itself.

    No step is larger than `largest`, also where an encoder's last range is open.
    """
    found: set[int] = set()
    for part in parts:
        ranges = [CompileRange(start, min(end, largest)) for start, end in part.ranges if start <= largest]
        exact = {one.start for one in ranges if one.single}
        for one in ranges:
            # An exact size is served by its own pieces, also at the end of a range.
            own = (count for count in range(one.end, one.start - 1, -1) if one.single or count not in exact)
            found.update(itertools.islice(own, 1))
        found.update(check_counts(ranges))
    smallest = max(part.door.smallest for part in parts)
    return tuple(sorted(count for count in found if smallest <= count))


def _several(parts: Sequence[CompiledPart]) -> list[SealedTriton]:
    return [
        kernel
        for part in parts
        for piece in part.loaded()
        for kernel in (piece.triton if isinstance(piece, SealedPiece) else ())
        if len(kernel.configs) > 1
    ]


def _timed(runner: Runner, kernels: Sequence[SealedTriton], counts: Sequence[int]) -> dict[str, _Timed]:
    timed: dict[str, _Timed] = {}
    context = call_context(runner.served, runner.deployment)
    for count in counts:
        # A kernel of thirty equal layers is timed in the first.
        waiting = {kernel.name for kernel in kernels}
        for kernel in kernels:
            kernel.run = _timing(kernel, count, waiting, timed)
        with torch.no_grad(), context(count):
            runner.plain_forward(*runner.served.example_inputs(count))
    return timed


def _timing(kernel: SealedTriton, count: int, waiting: set[str], timed: dict[str, _Timed]) -> Any:
    def run(*args: Any, stream: int) -> None:
        if kernel.name in waiting:
            waiting.discard(kernel.name)
            times = kernel.timed(args, stream)
            fastest = max(min(times.values()), 1e-9)
            found = timed.setdefault(kernel.name, _Timed(kernel))
            found.slower[count] = {index: one / fastest for index, one in times.items()}
        kernel.launch(0, args, stream)

    return run


def _write(path: Path, choices: Choices) -> None:
    """Writes a file of choices whole, or leaves what was there."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(choices.as_json(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
