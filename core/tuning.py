"""Choosing between the configurations of an entry's kernels on the device, once and for all to be kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphkiln.core.choices import Choice, Choices
from graphkiln.core.compile.check import check_counts
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.compile.sealed import SealedPiece
from graphkiln.core.compile.sealed_triton import SealedTriton
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice
from graphkiln.core.graphs.model_graphs import compiled_parts
from graphkiln.core.parts import call_context
from graphkiln.core.phases import Phases
from graphkiln.core.publication import tool_versions
from graphkiln.core.report import Progress, Silent, StartReport
from graphkiln.core.runner import Runner


@dataclass(frozen=True)
class Tuned:
    """The choices that were made, with each kernel's calls that they rest on, and the file they are in."""

    choices: Choices
    calls: dict[str, int]
    configs: dict[str, int]
    counts: tuple[int, ...]
    start: StartReport
    path: Path


@dataclass
class _Timed:
    """How much longer than the fastest each configuration of one kernel took, call by call."""

    kernel: SealedTriton
    slower: list[dict[int, float]] = field(default_factory=list)

    def best(self) -> int:
        """Returns the configuration that lost least over all calls; the first of equals."""
        together = set.intersection(*(set(one) for one in self.slower))
        return min(sorted(together), key=lambda index: sum(one[index] for one in self.slower))


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
    is not here, and what loading the model raises.
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
    counts = _counts(plan.ranges(parts[0].door.smallest), parts[0].door.largest) if parts else ()
    with phases.phase("tune"):
        timed = _timed(runner, parts, counts)
    kernels = {name: Choice(one.kernel.title, one.kernel.configs[one.best()]) for name, one in timed.items()}
    choices = Choices(f"choices {path}", target.as_factor(), tool_versions(), kernels)
    _write(path, choices)
    assert runner.report is not None
    return Tuned(
        choices,
        {name: len(one.slower) for name, one in timed.items()},
        {name: len(one.kernel.configs) for name, one in timed.items()},
        counts,
        runner.report,
        path,
    )


def _counts(ranges: Sequence[Any], largest: int) -> tuple[int, ...]:
    return tuple(sorted({*check_counts(ranges), largest}))


def _timed(runner: Runner, parts: Iterable[CompiledPart], counts: Sequence[int]) -> dict[str, _Timed]:
    kernels = [
        kernel
        for part in parts
        for piece in part.loaded()
        for kernel in (piece.triton if isinstance(piece, SealedPiece) else ())
        if len(kernel.configs) > 1
    ]
    timed: dict[str, _Timed] = {}
    context = call_context(runner.served, runner.deployment)
    for count in counts:
        # A kernel of thirty equal layers is timed in the first.
        waiting = {kernel.name for kernel in kernels}
        for kernel in kernels:
            kernel.run = _timing(kernel, waiting, timed)
        with torch.no_grad(), context(count):
            runner.plain_forward(*runner.served.example_inputs(count))
    return timed


def _timing(kernel: SealedTriton, waiting: set[str], timed: dict[str, _Timed]) -> Any:
    def run(*args: Any, stream: int) -> None:
        if kernel.name in waiting:
            waiting.discard(kernel.name)
            times = kernel.timed(args, stream)
            fastest = max(min(times.values()), 1e-9)
            found = timed.setdefault(kernel.name, _Timed(kernel))
            found.slower.append({index: one / fastest for index, one in times.items()})
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
