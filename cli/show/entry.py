"""How one entry is shown: everything that it says about itself, and whether it is sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cli.show.entries import target_text
from graphkiln.cli.show.key import factor_lines
from graphkiln.cli.show.numbers import age_text, bytes_text, count_text, seconds_text
from graphkiln.cli.show.passes import pass_lines
from graphkiln.cli.show.start import decision_lines, phase_lines
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.cache.store.entries import Entry

STARTS_SHOWN = 5
T = TypeVar("T")


def entry_facts(entry: Entry, starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the entry holds as data; what cannot be read is left out and stands in `faults`."""
    state = entry.state
    factors = readable(entry.factors)
    ranks = [readable(partial(rank_facts, entry, rank)) for rank in entry.ranks()]
    return {
        "id": entry.short,
        "key": entry.key,
        "lookup": entry.lookup,
        "path": str(entry.path),
        "bytes": entry.total_bytes,
        "label": state.label,
        "pinned": state.pinned,
        "last_used": state.last_used,
        "header": dict(entry.header),
        "factors": factors.as_json() if factors else {},
        "build_digest": readable(lambda: entry.build_digest),
        "ranks": [rank for rank in ranks if rank],
        "faults": [asdict(fault) for fault in entry.verify()],
        "starts": [dict(start) for start in starts if start.get("key") == entry.key],
    }


def readable(read: Callable[[], T]) -> T | None:
    """Returns what `read` returns, or None where it meets damage, which verification names."""
    try:
        return read()
    except EntryDamaged:
        return None


def rank_facts(entry: Entry, rank: str) -> dict[str, Any]:
    manifest = entry.manifest(rank)
    return {
        "rank": rank,
        "build_digest": manifest.build_digest,
        "bytes": sum(record.size for record in manifest.files.values()),
        "files": len(manifest.files),
        "parts": {prefix: list(artifacts) for prefix, artifacts in manifest.parts.items()},
        "passes": manifest.specific.get("passes") or {},
    }


def entry_lines(entry: Mapping[str, Any], style: Style, *, every_value: bool) -> list[str]:
    header: Mapping[str, Any] = entry["header"]
    return [
        *facts(head_pairs(entry), style),
        *below(fault_lines(entry["faults"], style)),
        "",
        *factor_lines(header["hashes"], entry["factors"], style, every_value=every_value),
        *below(part_lines(entry["ranks"], style)),
        *below(pass_lines(pieces_of(entry["ranks"]), style)),
        *below(phase_lines(pairs_of(header.get("phases")), style)),
        *below(decision_lines(header.get("decisions") or (), style)),
        *below(start_lines(entry["starts"], style)),
    ]


def head_pairs(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    header: Mapping[str, Any] = entry["header"]
    created = f"{header['created'][:19]}Z, {age_text(header['created'])}"
    versions = ", ".join(f"{name} {version}" for name, version in (header.get("versions") or {}).items())
    what = " ".join(str(header[name]) for name in ("model", "dtype") if header.get(name))
    pieces = header.get("pieces")
    faults = len(entry["faults"])
    return [
        ("entry", entry["id"]),
        ("model", what),
        ("target", target_text(header)),
        ("label", (entry["label"] or "") + (" (pinned)" if entry["pinned"] else "")),
        ("sound", f"no, {count_text(faults, 'fault')}" if faults else "yes, every digest agrees"),
        ("key", entry["key"]),
        ("lookup", entry["lookup"]),
        ("build", entry["build_digest"] or ""),
        ("size", bytes_text(entry["bytes"])),
        ("pieces", f"{pieces['total']} total, {pieces['distinct']} distinct" if pieces else ""),
        ("checked", "against eager" if header.get("checked") else "no, published without"),
        ("created", created + (f", by {header['command']}" if header.get("command") else "")),
        ("used", age_text(entry["last_used"]) if entry["last_used"] else ""),
        ("versions", versions),
        ("path", entry["path"]),
    ]


def fault_lines(faults: Sequence[Mapping[str, str]], style: Style) -> list[str]:
    rows = [(fault["file"], fault["kind"], fault["detail"]) for fault in faults]
    return table(("damaged file", "fault", ""), rows, style) if rows else []


def part_lines(ranks: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    rows = [
        (rank["rank"], prefix, str(len(used)), rank["build_digest"][:10])
        for rank in ranks
        for prefix, used in rank["parts"].items()
    ]
    return table(("rank", "part", ">artifacts", "build"), rows, style) if rows else []


def pieces_of(ranks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns what the passes did to every piece of every part of every rank."""
    return [piece for rank in ranks for pieces in rank["passes"].values() for piece in pieces]


def start_lines(starts: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns the newest starts that used the entry, and how many there were before them."""
    newest = list(reversed(starts[-STARTS_SHOWN:]))
    rows = [
        (
            age_text(str(start.get("at", ""))),
            str(start.get("outcome", "")),
            seconds_text(sum(seconds for _, seconds in pairs_of(start.get("phases")))),
        )
        for start in newest
    ]
    if not rows:
        return []
    older = len(starts) - len(rows)
    return [
        *table(("start", "outcome", ">seconds"), rows, style),
        *([f"and {older} before"] if older else []),
    ]


def pairs_of(phases: Any) -> list[tuple[str, float]]:
    """Returns stored phases, a mapping or a list of pairs, as pairs."""
    pairs = phases.items() if isinstance(phases, Mapping) else phases or ()
    return [(str(name), float(seconds)) for name, seconds in pairs]
