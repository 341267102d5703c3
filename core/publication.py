"""What of a compiled part becomes an entry: its files, and the header that says what it is."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.factors.modules import locate
from graphkiln.cache.store.draft import Draft
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.store import Store
from graphkiln.core.errors import NotReplaced
from graphkiln.core.plan import Plan
from graphkiln.core.report import PieceCounts, StartReport
from graphkiln.core.stored import RANK
from graphkiln.core.target.named import Target

if TYPE_CHECKING:
    from graphkiln.core.attending import BuiltAttention
    from graphkiln.core.compile.build import BuiltPart
    from graphkiln.core.tracing import TracedPart


@dataclass(frozen=True)
class CompiledFiles:
    """One compiled part: its folder name, its trace, and what was built of it."""

    prefix: str
    traced: TracedPart
    built: BuiltPart


def publish(
    store: Store,
    draft: Draft,
    factors: Factors,
    header: Mapping[str, Any],
    compiled: Sequence[CompiledFiles],
    *,
    description: Mapping[str, Any] | None,
    store_source: bool,
    aot: str | None,
    attention: BuiltAttention | None = None,
) -> Entry:
    """Returns the published entry of compiled parts, and of the attention kernels that run between them.

    `description` is what a later start needs to do without building the model; `aot` the kind of AOT
    file that goes with the entry. Raises what a draft raises, FactorsChanged, DiskFull, KeyPrefixCollision,
    and NotReplaced where an entry that was built with other choices stays.
    """
    kernels = None if attention is None else draft.add_artifact(attention.files)
    for part in compiled:
        built = part.built
        ids = [draft.add_artifact(artifact.files) for artifact in built.artifacts]
        pieces = [
            {**piece, "artifact": name} for piece, name in zip(built.wiring["pieces"], ids, strict=True)
        ]
        sources = {
            module: {**record, "stored": _stored_source(draft, module) if store_source else None}
            for module, record in sorted(part.traced.code.sources.items())
        }
        wiring = {**built.wiring, "pieces": pieces, "sources": sources, "model": description}
        if attention is not None and kernels is not None:
            wiring["attention"] = {"artifact": kernels, "dtypes": attention.dtypes}
            ids.append(kernels)
        draft.add_part(RANK, part.prefix, built.graph_py, wiring, list(dict.fromkeys(ids)))
    # Seconds differ from build to build: of the rank's own values, and not of the build that is digested.
    passes = {part.prefix: list(part.built.passes) for part in compiled}
    made = {} if attention is None else {"attention": attention.build}
    builds = {part.prefix: {**part.built.build, **made} for part in compiled}
    draft.set_rank(RANK, {"passes": passes}, builds)
    return _published(store, draft, factors, header, aot)


def _published(
    store: Store, draft: Draft, factors: Factors, header: Mapping[str, Any], aot: str | None
) -> Entry:
    """Publishes a finished draft; with choices in its header it is published, and no other entry left."""
    choices = header.get("choices")
    if choices is None:
        return draft.publish(header, factors, aot)
    entry = draft.publish(
        header, factors, aot, make_room=lambda: _make_room(store, factors.key, str(choices))
    )
    if entry.header.get("choices") != choices:
        raise NotReplaced(
            f"entry {entry.short}",
            "it was built with other choices and could not be set aside: what was compiled is not in it",
            f"graphkiln cache rm {entry.short}, and run it again",
        )
    return entry


def _make_room(store: Store, key: str, choices: str) -> None:
    """Sets aside an entry of the same key that was built with other choices, which would win."""
    there = store.entry_of(key)
    if there is not None and there.header.get("choices") != choices:
        store.set_aside(there, {"reason": "another build of it was asked for: precompile --choices"})


def piece_counts(parts: Sequence[BuiltPart], compiled: int) -> PieceCounts:
    """Returns the counts of compiled parts: one part's distinct piece may be another's, and compiled once."""
    fingerprints = {artifact.fingerprint for part in parts for artifact in part.artifacts}
    total = sum(part.pieces_total for part in parts)
    return PieceCounts(total, len(fingerprints), compiled, total - len(fingerprints))


def _stored_source(draft: Draft, module: str) -> str | None:
    path = locate(module)
    return None if path is None else draft.add_source(importlib.util.decode_source(path.read_bytes()))


def entry_header(plan: Plan, report: StartReport, command: str) -> dict[str, Any]:
    """Returns what `entry.json` says beside the key: what was asked, what it became, how long it took."""
    return {
        "model": plan.label,
        "dtype": plan.dtype,
        "target": target_header(plan.target),
        "requested": plan.requested(),
        "effective": plan.effective(),
        "decisions": [vars(decision) for decision in report.decisions],
        "cudagraph_plan": plan.compilation.cudagraph_plan(),
        "pieces": {"total": report.pieces.total, "distinct": report.pieces.distinct},
        "checked": report.check is not None,
        "phases": [[name, round(seconds, 3)] for name, seconds in report.phases],
        "versions": versions(),
        "command": command,
        **({"choices": plan.choices.digest} if plan.choices is not None else {}),
    }


def target_header(target: Target) -> dict[str, Any]:
    """Returns a target as a header tells it: its facts, how a person asked for it, the CPU's features."""
    return {**target.as_factor(), "name": target.name, "features": list(target.features)}


def tool_versions() -> dict[str, str]:
    """Returns the versions of what chooses between configurations, and of what these are compiled with."""
    found = versions()
    return {"torch": str(torch.__version__).partition("+")[0], "triton": found.get("triton", "none")}


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
