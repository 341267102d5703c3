"""What decides generated code beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkiln.core.choices import Choices
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.target.named import Target

if TYPE_CHECKING:
    from graphkiln.core.compile.dump import PartDump


@dataclass(frozen=True)
class InductorSettings:
    """What decides generated code beside the graph: token range, target, Inductor options, passes.

    `hint` is the token count that size heuristics see; `scratch` a private folder for the files
    that compilers write; `partition_ops` are ops around which Inductor makes functions of their own of
    a piece; `dump` is told what a debug dump shows; `choices` are those between a kernel's configurations
    that were made before.
    """

    smallest: int
    largest: int
    hint: int
    target: Target
    options: Mapping[str, Any]
    scratch: Path
    fast_math: bool = False
    passes: Pipeline = field(default_factory=Pipeline)
    partition_ops: tuple[str, ...] = ()
    dump: PartDump | None = None
    unbacked: bool = False
    choices: Choices | None = None

    @property
    def static(self) -> bool:
        """Whether there is one token count, which is a number in the code then."""
        return self.smallest == self.largest
