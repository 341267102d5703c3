"""Making what no entry holds: the parts of a start traced, compiled, sealed and loaded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphkiln.core.attending import Attending, BuiltAttention
from graphkiln.core.collector import collector_relaxed
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.finding import Code
from graphkiln.core.journal import Journal
from graphkiln.core.loading import FreshArtifact, load_part, require_device
from graphkiln.core.mending import Mending
from graphkiln.core.part import Part
from graphkiln.core.phases import Phases
from graphkiln.core.plan import Plan
from graphkiln.core.publication import CompiledFiles, piece_counts
from graphkiln.core.stored import RANK

if TYPE_CHECKING:
    from graphkiln.core.compile.build import SealedArtifact
    from graphkiln.core.compile.dump import DebugDump
    from graphkiln.core.tracing import TracedPart


@dataclass(frozen=True)
class Built:
    """Compiled parts ready to be called, in the order of the parts, and the files that they came from.

    `codes` is empty where a part left no record of what it depends on.
    """

    serve: list[CompiledPart]
    files: list[CompiledFiles]
    codes: list[Code]
    smallest: list[int]
    attention: BuiltAttention | None = None


class Builder:
    """What one start makes; what it finds out goes into the journal. `dump` is told of every step."""

    def __init__(self, plan: Plan, phases: Phases, journal: Journal, dump: DebugDump | None) -> None:
        self.plan = plan
        self.phases = phases
        self.journal = journal
        self.dump = dump

    def trace(self, parts: Sequence[Part], *, keyed: bool) -> list[TracedPart]:
        """Returns the one trace of each part; without `keyed` there is no code factor."""
        with self.phases.phase("trace"):
            # Here and not above: a hit imports neither Dynamo's tracer nor Inductor.
            from graphkiln.core.tracing import trace_part

            traced = [trace_part(part, self.plan, keyed=keyed) for part in parts]
        self.journal.smallest = max(one.smallest for one in traced)
        for part, one in zip(parts, traced, strict=True):
            self.journal.decisions.extend(one.decisions)
            if self.dump is not None:
                self.dump.part(RANK, part.prefix).traced(one.capture, one.code.factor)
        return traced

    def build(
        self,
        parts: Sequence[Part],
        traced: Sequence[TracedPart],
        scratch: Path,
        mending: Mending | None = None,
        attending: Attending | None = None,
    ) -> Built:
        """Returns traced parts compiled; compilers write into `scratch`, which must outlive the calls.

        What `mending` holds of them is taken from there. With `attending` the kernels that run between
        them are compiled too.
        """
        compiled: list[CompiledFiles] = []
        known: dict[tuple[str, tuple[int, int]], SealedArtifact] = {}
        if mending is not None and self.plan.choices is None:
            for part in parts:
                known |= mending.sound(part.prefix)
        kept = set(known)
        with self.phases.phase("compile"), collector_relaxed():
            from graphkiln.core.compile.build import build_part

            for part, one in zip(parts, traced, strict=True):
                dump = None if self.dump is None else self.dump.part(RANK, part.prefix)
                ranges = self.plan.settings(one.smallest, scratch, dump, part.encoder)
                built = build_part(
                    part.module, one.capture, part.dynamic, self.plan.compilation.cutting_ops,
                    ranges, known, self.phases.progress.pieces,
                )  # fmt: skip
                compiled.append(CompiledFiles(part.prefix, one, built))
                self.journal.passes += built.passes
            attention = None
            if attending is not None:
                graphs = [one.capture.graph for one in traced]
                whole = None if mending is None else mending.attention(parts[0].prefix)
                attention = attending.build(graphs, scratch, whole)
                if attending.left_out:
                    self.journal.note(attending.left_out)
                if attention is not None and whole is None:
                    self.journal.counts["kernels_compiled"] += attention.kernels
        if self.plan.choices is not None:
            self.plan.choices.require_used(name for artifact in known.values() for name in artifact.chosen)
        new = [artifact for found, artifact in known.items() if found not in kept]
        self.journal.pieces = piece_counts([files.built for files in compiled], len(new))
        self.journal.counts["kernels_compiled"] += sum(artifact.kernels for artifact in new)
        with self.phases.phase("load"):
            require_device("just built", self.plan.target)
            serve = [
                load_part(
                    files.built.wiring,
                    [FreshArtifact(artifact.files) for artifact in files.built.artifacts],
                    part.module,
                    "just built",
                    self.plan.target.torch_device,
                )
                for part, files in zip(parts, compiled, strict=True)
            ]
            if attending is not None and attention is not None:
                attending.load("just built", attention.dtypes, FreshArtifact(attention.files))
        recorded = all(one.code.factor for one in traced)
        codes: list[Code] = [(one.code.factor, one.code.sources) for one in traced] if recorded else []
        return Built(serve, compiled, codes, [one.smallest for one in traced], attention)
