"""What a start did, as data: the terminal, `--json` and the ledger all show this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from graphkiln.cache.factors.difference import Difference

Outcome = Literal["hit", "compiled", "miss", "bypass"]


@dataclass(frozen=True)
class Decision:
    """One setting that became something else, or was chosen: what was asked, what it is, and why."""

    field: str
    asked: Any
    got: Any
    reason: str


@dataclass(frozen=True)
class PieceCounts:
    """Pieces of the split graph, how many are distinct, and of those how many were compiled or reused."""

    total: int = 0
    distinct: int = 0
    compiled: int = 0
    reused: int = 0


@dataclass(frozen=True)
class CheckRow:
    """Compiled against eager at one token count: the largest absolute difference, and the limit."""

    num_tokens: int
    max_abs_error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether they agree; a NaN never does."""
        return self.max_abs_error <= self.tolerance


@dataclass(frozen=True)
class CheckReport:
    """The rows of a numeric check."""

    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        """Whether all rows agree."""
        return all(row.ok for row in self.rows)


@dataclass(frozen=True)
class StartReport:
    """What one start did. `phases` are (name, seconds) and add up to its wall time.

    `reasons` say why it was no hit; `counts` what was converted, compiled, started and loaded; `passes`
    what each pass did to each piece that was compiled: `{"piece", "tokens", "passes": [{"name", "seconds",
    "matches"}]}`. `capture` is the report of a capture check, None where none was made. `emulated` says that
    the device was described and not here: what was loaded was not run.
    """

    outcome: Outcome
    key: str | None
    lookup: str | None
    target: str
    entry_path: Path | None = None
    phases: tuple[tuple[str, float], ...] = ()
    pieces: PieceCounts = PieceCounts()
    entry_bytes: int = 0
    decisions: tuple[Decision, ...] = ()
    effective: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[Difference, ...] = ()
    check: CheckReport | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    compiled_seconds: float | None = None
    passes: tuple[Mapping[str, Any], ...] = ()
    capture: Mapping[str, Any] | None = None
    emulated: bool = False
    aot: Path | None = None

    @property
    def seconds(self) -> float:
        """Wall time of the start."""
        return sum(seconds for _, seconds in self.phases)


@dataclass(frozen=True)
class KeyReport:
    """The key of a deployment and what it is made of; `key` is None when nothing was traced.

    `effective` is what became of the options, also where it is no part of the key.
    """

    key: str | None
    lookup: str
    hashes: Mapping[str, str]
    factors: Mapping[str, Any]
    decisions: tuple[Decision, ...]
    target: str
    effective: Mapping[str, Any] = field(default_factory=dict)


class Progress(Protocol):
    """Who is told how far a start has come."""

    def phase(self, name: str) -> None: ...

    def pieces(self, done: int, total: int, what: str = "pieces") -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """A progress that shows nothing."""

    def phase(self, name: str) -> None: ...

    def pieces(self, done: int, total: int, what: str = "pieces") -> None: ...

    def note(self, text: str) -> None: ...
