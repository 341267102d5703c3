"""The mutable file of an entry: label, pin, last use, proof. Best effort, in no digest, never trusted."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import CacheError
from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.cache.store.files import open_inside, write_new
from graphkiln.cache.store.root import CacheRoot

STATE_FILE = "state.json"
_MAX_BYTES = 64 << 10
# Artifacts whose refusals are remembered: with all of them the file stays far below what is read of it.
_MOST_REFUSED = 64


@dataclass(frozen=True)
class State:
    """What people and starts noted about an entry; `last_used` is a UTC time as text.

    `proved`: a start that loaded it made a first call that came back. `refused`: how often each artifact
    could not be loaded though its bytes were right, the latest of them last.
    """

    label: str | None = None
    pinned: bool = False
    last_used: str | None = None
    proved: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)


def read_state(entry: Path) -> State:
    """Return the state of the entry at `entry`; whatever cannot be read counts as never written."""
    try:
        with open_inside(entry, STATE_FILE) as stream:
            found = parse_object(stream.read(_MAX_BYTES))
    except (OSError, DocumentFault):
        return State()
    return State(
        label=_text(found.get("label")),
        pinned=found.get("pinned") is True,
        last_used=_text(found.get("last_used")),
        proved=found.get("proved") is True,
        refused=_counts(found.get("refused")),
    )


def update_state(root: CacheRoot, entry: Path, **changes: Any) -> bool:
    """Change fields of an entry's state; False where that is not possible, which is never an error.

    Two writers at once: the later one wins, the file is whole in any case.
    """
    state = replace(read_state(entry), **changes)
    state = replace(state, refused=dict([*state.refused.items()][-_MOST_REFUSED:]))
    draft = root.staging / f"state-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        root.ensure()
        write_new(draft, json.dumps(asdict(state)).encode("ascii"))
        # The folder must be there already: a rename must never bring a removed entry's name back.
        os.rename(draft, entry / STATE_FILE)
    except (OSError, CacheError):
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return False
    return True


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {name: times for name, times in value.items() if type(times) is int}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
