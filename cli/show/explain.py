"""How it is shown what a start would do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.causes import cause_lines, causes_json
from graphkiln.cli.show.numbers import age_text, count_text, seconds_text
from graphkiln.cli.show.start import decision_lines, difference_lines
from graphkiln.cli.show.table import below, facts
from graphkiln.cli.show.terminal import Style, printable

if TYPE_CHECKING:
    from graphkiln.cache.layouts.vllm.explain import EnvironmentExplanation
    from graphkiln.core.explain import Explanation


def explain_lines(
    found: Explanation | EnvironmentExplanation, model: str, style: Style, *, every: bool
) -> list[str]:
    """Returns the answer, and for a miss each near entry with what differs and what removes it."""
    saves = f"{seconds_text(found.saves)} s of compiling" if found.saves else ""
    there = count_text(found.entries, "entry", "entries")
    cache = "" if found.root is None else str(found.root)
    counted = found.outcome == "miss" or bool(found.entries)
    lines = facts(
        [
            (found.outcome, f"{model} for {found.target}"),
            ("entry", found.entry or ""),
            ("saves", saves),
            ("key", found.key or ""),
            ("lookup", "" if found.key else found.lookup or ""),
            ("cache", f"{cache}, {there}" if cache and counted else cache),
        ],
        style,
    )
    for text in found.assumed:
        lines += below(facts([("assumed", text)], style))
    for text in found.left_out:
        lines += below(facts([("left out", text)], style))
    lines += below(difference_lines(found.reasons, style), style.bold("why it can hit nothing"))
    for near in found.nearest:
        names = ("entry", "here")
        title = f"nearest  {near.id}  {near.model}, {age_text(near.created)}"
        lines += below(
            cause_lines(near.causes, style, names=names, aim="to hit it", every=every) or ["nothing differs"],
            style.bold(printable(title)),
        )
    decisions = [asdict(decision) for decision in found.decisions]
    return [*lines, *below(decision_lines(decisions, style) if every else [])]


def explain_json(found: Explanation | EnvironmentExplanation, model: str) -> dict[str, Any]:
    """Returns the answer as data."""
    return {
        "model": model,
        "target": found.target,
        "outcome": found.outcome,
        "root": None if found.root is None else str(found.root),
        "entries": found.entries,
        "key": found.key,
        "lookup": found.lookup,
        "entry": found.entry,
        "compiled_seconds": found.saves,
        "assumed": list(found.assumed),
        "left_out": list(found.left_out),
        "reasons": [asdict(one) for one in found.reasons],
        "nearest": [
            {
                "id": near.id,
                "key": near.key,
                "path": near.path,
                "model": near.model,
                "created": near.created,
                "causes": causes_json(near.causes),
            }
            for near in found.nearest
        ],
        "decisions": [asdict(decision) for decision in found.decisions],
    }
