"""What of a compiled part becomes an entry: its files, and the header that says what it is."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.factors.modules import locate
from graphkiln.cache.store.draft import Draft
from graphkiln.cache.store.entries import Entry
from graphkiln.core.loading import RANK
from graphkiln.core.plan import Plan
from graphkiln.core.report import StartReport

if TYPE_CHECKING:
    from graphkiln.core.compile.build import BuiltPart
    from graphkiln.core.tracing import TracedPart


def publish(
    draft: Draft,
    factors: Factors,
    header: Mapping[str, Any],
    prefix: str,
    traced: TracedPart,
    built: BuiltPart,
    *,
    description: Mapping[str, Any] | None,
    store_source: bool,
) -> Entry:
    """Returns the published entry of one compiled part.

    `description` is what a later start needs to do without building the model. Raises what a draft
    raises: FactorsChanged, DiskFull, KeyPrefixCollision.
    """
    ids = [draft.add_artifact(artifact.files) for artifact in built.artifacts]
    pieces = [{**piece, "artifact": name} for piece, name in zip(built.wiring["pieces"], ids, strict=True)]
    sources = {
        module: {**record, "stored": _stored_source(draft, module) if store_source else None}
        for module, record in sorted(traced.code.sources.items())
    }
    wiring = {**built.wiring, "pieces": pieces, "sources": sources, "model": description}
    draft.add_part(RANK, prefix, built.graph_py, wiring, ids)
    # Seconds differ from build to build: of the rank's own values, and not of the build that is digested.
    draft.set_rank(RANK, {"passes": {prefix: list(built.passes)}}, {prefix: built.build})
    return draft.publish(header, factors)


def _stored_source(draft: Draft, module: str) -> str | None:
    path = locate(module)
    return None if path is None else draft.add_source(importlib.util.decode_source(path.read_bytes()))


def entry_header(plan: Plan, report: StartReport, command: str) -> dict[str, Any]:
    """Returns what `entry.json` says beside the key: what was asked, what it became, how long it took."""
    target = plan.target
    return {
        "model": plan.label,
        "dtype": plan.dtype,
        "target": {**target.as_factor(), "name": target.name, "features": list(target.features)},
        "requested": plan.requested(),
        "effective": plan.effective(),
        "decisions": [vars(decision) for decision in report.decisions],
        "cudagraph_plan": {"mode": "NONE", "reason": "CUDA graphs need a CUDA target"},
        "pieces": {"total": report.pieces.total, "distinct": report.pieces.distinct},
        "checked": report.check is not None,
        "phases": [[name, round(seconds, 3)] for name, seconds in report.phases],
        "versions": versions(),
        "command": command,
    }


def versions() -> dict[str, str]:
    """Returns the versions that an entry is stamped with; not a factor, only to be read."""
    found = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for name in ("graphkiln", "transformers", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return dict(sorted(found.items()))
