"""How a key is shown: the key, its factors by hash, and their values when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphkiln.cache.factors.key import FACTOR_NAMES
from graphkiln.cli.show.numbers import count_text
from graphkiln.cli.show.start import decision_lines
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.core.report import KeyReport


def key_lines(report: KeyReport, style: Style, *, every_value: bool) -> list[str]:
    pairs = [
        ("target", report.target),
        ("key", report.key or "not known without a trace"),
        ("lookup", report.lookup),
    ]
    return [
        *facts(pairs, style),
        "",
        *factor_lines(report.hashes, report.factors, style, every_value=every_value),
        *below(decision_lines([asdict(decision) for decision in report.decisions], style)),
        *(effective_lines(report.effective, style) if every_value else []),
    ]


def effective_lines(effective: Mapping[str, Any], style: Style) -> list[str]:
    """Returns the options as they are in effect, those that are no part of the key too."""
    return below(facts(list(leaves(effective)), style), style.bold("in effect")) if effective else []


def factor_lines(
    hashes: Mapping[str, str], factors: Mapping[str, Any], style: Style, *, every_value: bool
) -> list[str]:
    """Returns the table of factors, followed by all their values where `every_value`."""
    names = [name for name in FACTOR_NAMES if name in hashes]
    values = {name: list(leaves(factors[name])) for name in names if name in factors}
    held = {name: count_text(len(found), "value") for name, found in values.items()}
    rows = [(name, hashes[name][:10], held.get(name, "not readable")) for name in names]
    lines = table(("factor", "hash", "holds"), rows, style)
    for name, found in values.items() if every_value else ():
        lines += below(facts(found, style), style.bold(name))
    return lines


def leaves(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted path and text of every plain value inside `value`."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    elif path:
        yield path, '""' if value == "" else str(value)


def key_json(report: KeyReport, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "target": report.target,
        "key": report.key,
        "lookup": report.lookup,
        "hashes": dict(report.hashes),
        "factors": dict(report.factors),
        "decisions": [asdict(decision) for decision in report.decisions],
        "effective": dict(report.effective),
    }
