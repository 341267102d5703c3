"""What every reader of a foreign tree gives, so that the commands show them all alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from graphkiln.cache.inspect.catalogue import Catalogue, Row
from graphkiln.cache.inspect.pieces import Piece
from graphkiln.cache.inspect.verify import Verdict
from graphkiln.cache.layouts.files import UNREAD, Stat
from graphkiln.cache.store.reading import Fault

# What a start could never load: what a failed, killed or disabled run left, or what was overwritten.
LITTER = "litter"
# Of a version that no reader knows, or with a folder in it that cannot be read.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class ForeignRow(Row):
    """One entry of a foreign tree. `form` says in which of its forms it lies there.

    `folders` are all that belong to it alone and that a removal takes, `guess` says which of them only
    seem to; `unread` is the first name that could not be looked into, `closed` an entry that could not and
    may be the one that it belongs to; `unit` is what its reader made.
    """

    layout: str = ""
    form: str = ""
    folders: tuple[Path, ...] = ()
    guess: str = ""
    unread: str = ""
    closed: str = ""
    unit: Any = field(default=None, repr=False, compare=False)
    # What lay in each folder when it was read, so that a removal sees whether it changed.
    seen: Mapping[Path, Mapping[str, Stat]] = field(default_factory=dict, repr=False, compare=False)
    reader: Any = field(default=None, repr=False, compare=False)

    @property
    def idle_since(self) -> str | None:
        """When it was last used, where the files tell; never when it was made."""
        return self.last_used

    @property
    def doubt(self) -> str:
        """What a removal of it takes along on a guess."""
        return f"; {self.guess}" if self.guess else ""

    @property
    def spared(self) -> str:
        """Why no rule may remove it, "" where one may."""
        if self.unread:
            return f"{self.unread} cannot be read"
        if self.closed:
            return f"it may belong to {self.closed}, which cannot be read"
        if self.health == UNKNOWN:
            return "no reader knows its version"
        if self.foreign == (".",):
            return "no folder stands in its place"
        if not self.folders:
            return "it shares its files with others"
        return f"it holds a file that is not {self.layout}'s: {self.foreign[0]}" if self.foreign else ""

    def factors(self) -> Mapping[str, Any] | None:
        """Return the values that can be recovered, by factor; None where there are none."""
        return dict(self.reader.account(self).factors) or None


@dataclass(frozen=True)
class ForeignFault(Fault):
    """One thing wrong, and what the program whose tree it is does with it at its next start."""

    effect: str = ""


@dataclass(frozen=True)
class ForeignVerdict(Verdict):
    """The verdict on an entry of a foreign tree; `notes` are told and nothing is wrong with them."""

    health: str = "sound"
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """As for our own entries, and litter, and unknown where what is known is not wrong."""
        unread = [fault for fault in self.faults if fault.kind == UNREAD]
        if any(fault.kind == "version" for fault in self.faults) or (
            unread and len(unread) == len(self.faults) and not self.missing_ranks
        ):
            return UNKNOWN
        if self.health == LITTER:
            return LITTER
        return super().status


@dataclass(frozen=True)
class ForeignAccount:
    """All that an entry of a foreign tree says about itself.

    `about` are pairs of name and text: relations, versions, how a thing is known. `hashes` are by factor,
    `factors` the values that could be recovered. `graphs` and `sources` are texts by name, `build` what
    the compilers chose, `notes` what is not stored.
    """

    row: ForeignRow
    about: tuple[tuple[str, str], ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, Any] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = ()
    graphs: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def unread_fault(name: str, why: str = "this user may not look into it") -> ForeignFault:
    """Return the fault of what cannot be looked into."""
    return ForeignFault(name, UNREAD, why, "not known")


class Reader(Protocol):
    """One layout: where its trees lie, what is in one, and what one entry says and is worth."""

    @property
    def name(self) -> str: ...

    def places(self, environ: Mapping[str, str]) -> list[Path]:
        """Return where such a tree lies if nobody says otherwise, the likeliest place first."""
        ...

    def scan(self, root: Path) -> Catalogue:
        """Return the entries; `UnknownLayout` where there is no tree of this layout."""
        ...

    def account(self, row: ForeignRow) -> ForeignAccount:
        """Return what an entry says about itself."""
        ...

    def verify(self, row: ForeignRow) -> ForeignVerdict:
        """Return what is wrong with an entry, every byte of it read."""
        ...
