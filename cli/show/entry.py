"""How one entry is shown: everything that it says about itself, and whether it is sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.attention import attention_lines, attention_text
from graphkiln.cli.show.capture import capture_lines
from graphkiln.cli.show.causes import row_lines, short, value_text
from graphkiln.cli.show.entries import target_text
from graphkiln.cli.show.key import effective_lines, factor_lines
from graphkiln.cli.show.numbers import age_text, bytes_text, count_text, seconds_text
from graphkiln.cli.show.passes import pass_lines
from graphkiln.cli.show.start import decision_lines
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style, printable

if TYPE_CHECKING:
    from graphkiln.cache.inspect.account import Account
    from graphkiln.cache.inspect.pieces import Piece

STARTS_SHOWN, PATHS_SHOWN = 3, 3


@dataclass(frozen=True)
class Shown:
    """Which details are asked for beside the one screen."""

    factors: bool = False
    pieces: bool = False
    graphs: bool = False
    source: bool = False
    guards: bool = False


def entry_lines(found: Account, style: Style, shown: Shown) -> list[str]:
    header = found.entry.header
    return [
        *facts(head_pairs(found), style),
        *below(fault_lines(found.faults, style)),
        *below(factor_lines(header["hashes"], found.factors, style, every_value=shown.factors)),
        *below(decision_lines(header.get("decisions") or (), style)),
        *(effective_lines(header.get("effective") or {}, style) if shown.factors else []),
        *below(rank_lines(found.ranks, style)),
        *below(piece_lines(found.pieces, style)),
        *below(pass_lines(passes_of(found.ranks), style)),
        *below(
            [line for piece in found.pieces for line in detail_lines(piece, style)] if shown.pieces else []
        ),
        *below(attention_lines(found.attention, style) if shown.pieces else []),
        *below(path_lines(found.paths, style, every=shown.factors)),
        *below(start_lines(found.starts, style)),
        *(capture_lines(found.capture, style, every=shown.guards) if found.capture else []),
        *below(guard_lines(found, style) if shown.guards else []),
        *text_lines(found, shown, style),
    ]


def head_pairs(found: Account) -> list[tuple[str, str]]:
    entry, header, state = found.entry, found.entry.header, found.entry.state
    created = f"{header['created'][:19]}Z, {age_text(header['created'])}"
    versions = ", ".join(f"{name} {version}" for name, version in (header.get("versions") or {}).items())
    what = " ".join(str(header[name]) for name in ("model", "dtype") if header.get(name))
    faults = len(found.faults)
    checked = "compared with eager" if header.get("checked") else "not compared with eager"
    sound = f"no, {count_text(faults, 'fault')}" if faults else f"yes, every digest agrees; {checked}"
    last = max(
        filter(None, (state.last_used, *(str(start.get("at", "")) for start in found.starts))), default=""
    )
    return [
        ("entry", entry.short),
        ("model", f"{what} for {target_text(header)}"),
        ("label", (state.label or "") + (" (pinned)" if state.pinned else "")),
        ("sound", sound),
        ("key", entry.key),
        ("build", found.build_digest or ""),
        ("size", f"{bytes_text(found.bytes)} in {count_text(found.files, 'file')}"),
        ("created", created + (f", by {header['command']}" if header.get("command") else "")),
        ("used", f"{age_text(last)}, {count_text(found.hits, 'hit')}" if last else ""),
        ("cold", phases_text(pairs_of(header.get("phases")))),
        ("asked", asked_text(header.get("requested"))),
        ("guards", guards_text(found)),
        ("calls", "; ".join(doors_text(found.doors))),
        ("versions", versions),
        ("path", str(entry.path)),
        ("aot", "; ".join(aot_text(file) for file in found.aot)),
        ("attention", "; ".join(attention_text(one) for one in found.attention)),
    ]


def aot_text(file: Mapping[str, Any]) -> str:
    """Returns where an AOT file lies and what it is, or what is wrong with it."""
    if file["fault"]:
        return f"{file['path']}: {file['fault']}; the next start writes it again"
    held = "self-contained" if file["contained"] else "with the artifacts of the entry"
    return f"{file['path']}, {bytes_text(file['bytes'])}, {held}"


def asked_text(requested: Any) -> str:
    """Returns what was typed, as far as it says something: unset fields are left out."""
    asked = requested if isinstance(requested, Mapping) else {}
    parts = [asked.get("deployment"), *(part for name, part in asked.items() if name != "deployment")]
    return ", ".join(
        f"{name} {value_text(value)}"
        for part in parts
        for name, value in (part.items() if isinstance(part, Mapping) else ())
        if name != "model" and value not in (None, "", {}, [], False, 0, 1)
    )


def phases_text(phases: Sequence[tuple[str, float]]) -> str:
    """Returns the wall time of the compile and its phases, the longest first; a trace of time is left out."""
    wall = sum(seconds for _, seconds in phases)
    longest = sorted(phases, key=lambda phase: -phase[1])
    parts = [f"{name} {seconds_text(seconds)}" for name, seconds in longest if seconds >= 0.01]
    return f"{seconds_text(wall)} s: {', '.join(parts)}" if phases else ""


def guards_text(found: Account) -> str:
    from graphkiln.cache.inspect.guards import counts_by_kind

    counts = counts_by_kind(found.guards)
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{sum(counts.values())} dropped at run time and checked at load: {kinds}" if counts else ""


def doors_text(doors: Mapping[str, Any]) -> Iterator[str]:
    """Yields what every call must bring, part by part."""
    for name, door in doors.items():
        if not isinstance(door, Mapping):
            continue
        arguments = ", ".join(argument_text(row) for row in door.get("arguments") or ())
        yield f"{name} {door.get('smallest')} to {door.get('largest')} tokens, {arguments}"


def argument_text(row: Mapping[str, Any]) -> str:
    if "constant" in row:
        return f"{row.get('name')}={value_text(row['constant'][-1])}"
    shape = "x".join("T" if size is None else str(size) for size in row.get("shape") or ())
    return f"{row.get('name')} {str(row.get('dtype', '')).removeprefix('torch.')}[{shape}]"


def fault_lines(faults: Sequence[Mapping[str, str]], style: Style) -> list[str]:
    rows = [(fault["file"], fault["kind"], fault["detail"]) for fault in faults]
    return table(("damaged file", "fault", ""), rows, style) if rows else []


def rank_lines(ranks: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns the ranks of an entry that has more than one; a single one says nothing new."""
    rows = [
        (rank["rank"], prefix, str(len(used)), rank["build_digest"][:10])
        for rank in ranks
        for prefix, used in rank["parts"].items()
    ]
    return table(("rank", "part", ">artifacts", "build"), rows, style) if len(rows) > 1 else []


def passes_of(ranks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns what the passes did to every piece of every part of every rank."""
    return [piece for rank in ranks for pieces in rank["passes"].values() for piece in pieces]


def piece_lines(pieces: Sequence[Piece], style: Style) -> list[str]:
    """Returns the distinct pieces, each with its range of tokens, its size and where it is used."""
    several = len({(piece.rank, piece.prefix) for piece in pieces}) > 1
    rows = [
        (
            f"{piece.rank}/{piece.prefix} {piece.number}" if several else str(piece.number),
            f"{len(piece.uses)}x" if piece.uses else "",
            "..".join(map(str, piece.range)),
            piece.dynamic,
            bytes_text(piece.size),
            uses_text(piece.uses),
        )
        for piece in pieces
    ]
    return table(("piece", ">used", "tokens", "shapes", ">size", "after"), rows, style) if rows else []


def uses_text(uses: Sequence[str]) -> str:
    """Returns where a piece is used; of many places the first and the last."""
    return ", ".join(uses) if len(uses) < 3 else f"{uses[0]} to {uses[-1]}"


def detail_lines(piece: Piece, style: Style) -> list[str]:
    files = [(name, bytes_text(size)) for name, size in piece.files.items()]
    rows = [
        ("fingerprint", piece.fingerprint),
        ("artifact", piece.artifact),
        ("inputs", str(piece.inputs)),
        ("used after", ", ".join(piece.uses)),
        *((f"{bytes_text(size)}", name) for name, size in piece.files.items()),
    ]
    return [style.bold(f"piece {piece.number}"), *row_lines(rows, style)] if files or piece.uses else []


def path_lines(paths: Sequence[tuple[str, str]], style: Style, *, every: bool) -> list[str]:
    shown = paths if every else paths[:PATHS_SHOWN]
    rows = [(where, short(value)) for where, value in shown]
    if not rows:
        return []
    more = len(paths) - len(shown)
    return [*table(("looks like a path", "value"), rows, style), *([f"and {more} more"] if more else [])]


def guard_lines(found: Account, style: Style) -> list[str]:
    rows = [
        (guard.kind, f"{guard.times}x", f"{guard.name} = {short(value_text(guard.then))}")
        for guard in found.guards
    ]
    return table(("guard", ">for", "checked at load"), rows, style) if rows else []


def start_lines(starts: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns the newest starts that used the entry, and how many there were before them."""
    newest = list(reversed(starts[-STARTS_SHOWN:]))
    rows = [
        (
            age_text(str(start.get("at", ""))),
            str(start.get("outcome", "")),
            seconds_text(sum(seconds for _, seconds in pairs_of(start.get("phases")))),
            str(start.get("command", "")),
            f"{start.get('host', '')} pid {start.get('pid', '')}" if start.get("pid") else "",
        )
        for start in newest
    ]
    if not rows:
        return []
    older = len(starts) - len(rows)
    return [
        *table(("start", "outcome", ">seconds", "command", "host"), rows, style),
        *([f"and {older} before"] if older else []),
    ]


def text_lines(found: Account, shown: Shown, style: Style) -> list[str]:
    """Returns the graphs and the sources that are asked for, each under its name."""
    from graphkiln.cache.inspect.account import graphs, sources

    lines: list[str] = []
    for name, text in [
        *(graphs(found.entry) if shown.graphs else ()),
        *(sources(found.entry) if shown.source else ()),
    ]:
        body = [printable(line.replace("\t", "    ")) for line in text.splitlines()]
        lines += below(body, style.bold(name))
    return lines


def pairs_of(phases: Any) -> list[tuple[str, float]]:
    """Returns stored phases, a mapping or a list of pairs, as pairs."""
    pairs = phases.items() if isinstance(phases, Mapping) else phases or ()
    return [(str(name), float(seconds)) for name, seconds in pairs]
