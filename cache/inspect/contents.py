"""What stands inside the readable files of an entry: schemas, absolute paths, pieces."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from graphkiln.cache.factors.key import FACTOR_NAMES
from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.manifest import FACTORS_FILE, WIRING_FILE, Manifest, rank_folder
from graphkiln.cache.store.reading import Fault

# A slash where a word could begin, and at least two names: /home/me, not //comment, a/b, </s>.
_ABSOLUTE = re.compile(rb"(?<![\w./<:*)\]-])/[A-Za-z0-9_.+@-]+(?:/[A-Za-z0-9_.+@-]+)+")
_LETTERS = 120


def check_document(entry: Entry, name: str, data: bytes) -> list[Fault]:
    """Return what is wrong with a JSON file whose digest agreed: it does not parse, or is another entry's."""
    if not name.endswith(".json"):
        return []
    try:
        found = parse_object(data)
    except DocumentFault as fault:
        return [Fault(name, fault.fault, fault.detail)]
    if name == FACTORS_FILE:
        hashes = {factor: _digest(found.get(factor)) for factor in FACTOR_NAMES}
        if set(found) != set(FACTOR_NAMES) or hashes != entry.header["hashes"]:
            return [Fault(name, "schema", "the values do not give the hashes of the header")]
    return []


def found_paths(name: str, data: bytes) -> list[Fault]:
    """Return a fault with the first absolute path in a text: such an entry works in one place only."""
    match = _ABSOLUTE.search(data)
    if match is None:
        return []
    more = sum(1 for _ in _ABSOLUTE.finditer(data)) - 1
    text = match[0][:_LETTERS].decode("ascii") + (f" and {more} more" if more else "")
    return [Fault(name, "absolute path", text)]


def faults_in_pieces(entry: Entry, manifests: Sequence[Manifest]) -> list[Fault]:
    """Return where the pieces of a wiring, the artifacts of its part and the header's counts disagree."""
    faults = []
    for manifest in manifests:
        for prefix, used in manifest.parts.items():
            name = f"{rank_folder(manifest.rank)}/{prefix}/{WIRING_FILE}"
            wiring = entry.read_json(manifest.rank, prefix, WIRING_FILE)
            pieces, attention = wiring.get("pieces"), wiring.get("attention")
            if not isinstance(pieces, list):
                continue
            wanted = {piece.get("artifact") for piece in pieces if isinstance(piece, dict)}
            beside = {attention.get("artifact")} if isinstance(attention, dict) else set()
            if wanted | beside != set(used):
                named = f"{len(wanted | beside)} pieces{' with attention' if beside else ''}"
                detail = f"its {named} are not the {len(set(used))} artifacts of the manifest"
                faults.append(Fault(name, "pieces", detail))
            elif len(manifest.parts) == 1 and (expected := _distinct(entry)) not in (None, len(pieces)):
                faults.append(Fault(name, "pieces", f"{len(pieces)} of {expected} distinct pieces"))
    return faults


def _distinct(entry: Entry) -> int | None:
    pieces = entry.header.get("pieces")
    count = pieces.get("distinct") if isinstance(pieces, dict) else None
    return count if isinstance(count, int) else None


def _digest(value: Any) -> str:
    # What was parsed is canonical already: its digest needs no second look at each value.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
