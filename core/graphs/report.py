"""What a check of CUDA graphs found, as data: for the terminal, for `--json`, and for an entry's reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphkiln.core.graphs.capturer import Replayed, StepTime
from graphkiln.core.graphs.examine import Examination
from graphkiln.core.graphs.plan import GraphPlan
from graphkiln.core.graphs.table import DispatchRow
from graphkiln.core.graphs.traffic import Served
from graphkiln.core.report import Decision, StartReport


@dataclass(frozen=True)
class GraphReport:
    """The plan of a deployment, and what became of it.

    `cudagraphs` is the plan as an entry's header tells it. `capture` is the document that is kept with
    the entry, None where nothing was captured, which `why_not` explains: the device is `absent`, or graphs
    that were asked for are `refused`, or none were wanted. `traffic` is how the given traffic falls on the
    sizes. `kept` is where the document lies. `start` is the start that loaded the model.
    """

    target: str
    cudagraphs: Mapping[str, Any]
    plan: GraphPlan
    dispatch: tuple[DispatchRow, ...]
    decisions: tuple[Decision, ...]
    phases: tuple[tuple[str, float], ...] = ()
    start: StartReport | None = None
    capture: Mapping[str, Any] | None = None
    why_not: str | None = None
    absent: bool = False
    refused: bool = False
    traffic: Served | None = None
    kept: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every planned graph was captured and equals eager."""
        return self.capture is not None and bool(self.capture["ok"])


def capture_document(found: Examination, plan: GraphPlan, *, at: str, device: str) -> dict[str, Any]:
    """Returns an examination as the JSON that `cache.inspect.capture` knows the form of."""
    counts = {one.num_tokens for one in found.times}
    counts |= {one.descriptor.num_tokens for one in found.captured}
    suggestion = found.verdicts.suggestion
    return {
        "at": at,
        "device": device,
        "mode": plan.mode.name,
        "sizes": list(plan.request.sizes),
        "ok": found.ok,
        "graphs": {
            mode.name: sum(one.descriptor.mode is mode for one in found.captured) for mode in plan.modes
        },
        "seconds": round(found.seconds, 3),
        "bytes": sum(one.bytes for one in found.captured),
        "free": found.before.free,
        "leaked": found.leaked,
        "kept": found.kept,
        "rows": [_row(found, count) for count in sorted(counts)],
        "estimates": [
            {**asdict(estimate), "mode": estimate.mode.name, "bytes": estimate.bytes}
            for estimate in found.estimates
        ],
        "fitting": list(found.fitting),
        "padding": [_rounded(asdict(loss)) for loss in found.verdicts.padding],
        "never_win": [asdict(one) for one in found.verdicts.never_win],
        "suggestion": None if suggestion is None else _rounded(_plain(asdict(suggestion))),
        "shortage": None if found.shortage is None else _plain(asdict(found.shortage)),
    }


def _row(found: Examination, count: int) -> dict[str, Any]:
    captured = [one for one in found.captured if one.descriptor.num_tokens == count]
    replayed = [one for one in found.replayed if one.descriptor.num_tokens == count]
    times: list[StepTime] = [one for one in found.times if one.num_tokens == count]
    bytes_by_mode: dict[str, int] = {}
    for one in captured:
        mode = one.descriptor.mode.name
        bytes_by_mode[mode] = bytes_by_mode.get(mode, 0) + one.bytes
    # The replay of each mode that came closest to its limit. JSON has no NaN: what is not a number
    # stands in `unequal` alone.
    worst: dict[str, Replayed] = {}
    finite = [replay for replay in replayed if math.isfinite(replay.max_abs_error)]
    for replay in sorted(finite, key=lambda one: one.max_abs_error / (one.tolerance or 1.0)):
        worst[replay.descriptor.mode.name] = replay
    return {
        "num_tokens": count,
        "ms": {one.way.value: round(one.ms, 4) for one in times},
        "launches": {one.way.value: one.launches for one in times if one.launches is not None},
        "bytes": bytes_by_mode,
        "error": {mode: replay.max_abs_error for mode, replay in worst.items()},
        "allowed": {mode: replay.tolerance for mode, replay in worst.items()},
        "unequal": sorted({replay.descriptor.mode.name for replay in replayed if not replay.ok}),
    }


def descriptors_json(plan: GraphPlan) -> list[dict[str, Any]]:
    """Returns the graphs of a plan in the order of their capture, as plain data."""
    return [{**asdict(graph), "mode": graph.mode.name} for graph in plan.descriptors]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}
