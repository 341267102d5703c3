"""An entry in which some pieces cannot be used: those are compiled again, the others are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.state import read_state, update_state
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.surroundings import mount_of
from graphkiln.core.errors import PieceRefused
from graphkiln.core.stored import RANK, EntryStored, Stored

if TYPE_CHECKING:
    from graphkiln.core.compile.build import SealedArtifact

# One refusal may be this machine's fault; two of the same bytes are theirs.
_MOST_REFUSALS = 2


@dataclass(frozen=True)
class Mending:
    """Stored parts under `key` whose guards agree, and the artifacts of theirs that are `broken`."""

    stored: Stored
    key: str
    broken: frozenset[str]

    @property
    def frozen(self) -> bool:
        """Whether the pieces were built with choices between their configurations."""
        stored = self.stored
        return isinstance(stored, EntryStored) and stored.entry.header.get("choices") is not None

    def sound(self, prefix: str) -> dict[tuple[str, tuple[int, int]], SealedArtifact]:
        """Returns a part's pieces that need not be compiled, by fingerprint and range; no frozen ones."""
        from graphkiln.core.compile.build import SealedArtifact

        if self.frozen:
            # Beside pieces with all their configurations they would make an entry that is neither.
            return {}
        found: dict[tuple[str, tuple[int, int]], SealedArtifact] = {}
        for spec in self.stored.wiring(prefix)["pieces"]:
            if spec["artifact"] in self.broken:
                continue
            try:
                files = self._files(spec["artifact"])
            except EntryDamaged:
                # What no load reads may be damaged too: the piece is made anew.
                continue
            start, end = spec["range"]
            kernels = sum(name.endswith((".so", ".cubin")) for name in files)
            found[spec["fingerprint"], (start, end)] = SealedArtifact(
                spec["piece"], spec["fingerprint"], (start, end), files, spec["dynamic"], kernels
            )
        return found

    def attention(self, prefix: str) -> dict[str, bytes | Path] | None:
        """Returns the files of the attention kernels, None where there are none or some are broken."""
        found = self.stored.wiring(prefix).get("attention")
        if found is None or found["artifact"] in self.broken:
            return None
        try:
            return self._files(found["artifact"])
        except EntryDamaged:
            return None

    def passes(self, prefix: str) -> list[Mapping[str, Any]]:
        """Returns what the passes did to each piece when it was compiled."""
        if not isinstance(self.stored, EntryStored):
            return []
        rows = self.stored.entry.manifest(RANK).specific.get("passes", {})
        return list(rows.get(prefix, ()))

    def _files(self, artifact: str) -> dict[str, bytes | Path]:
        names = self.stored.artifacts()[artifact]
        return {name: self.stored.fetch(artifact, name) for name in names}


def note_refusal(store: Store, entry: Entry, refusal: PieceRefused, command: str) -> str | None:
    """Notes that a piece of sound bytes was refused; sets the entry aside the second time, and says so."""
    mount = mount_of(entry.path)
    if mount is not None and "noexec" in mount.options:
        # Not the entry's fault: nothing can be mapped from there.
        return None
    refused = dict(read_state(entry.path).refused)
    times = refused.pop(refusal.artifact, 0) + 1
    # Behind the others, as the latest.
    refused[refusal.artifact] = times
    if times < _MOST_REFUSALS:
        update_state(store.root, entry.path, refused=refused)
        return None
    reason = f"a piece of it was refused {times} times: {refusal.reason}"
    place = store.set_aside(entry, {"reason": reason, "command": command})
    return None if place is None else f"entry {entry.short} was set aside: {reason}"
