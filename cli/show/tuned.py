"""What `check --tune` chose, for people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.core.tuning import Tuned


def tuned_lines(found: Tuned, model: str, style: Style) -> list[str]:
    """Returns one line a kernel, below what was tuned, where the choices are, and what they leave open."""
    start = found.start
    rows = [
        (
            one.name,
            str(found.configs[name]),
            ", ".join(map(str, found.timed[name])),
            ", ".join(f"{key} {value}" for key, value in sorted(one.config.items())),
        )
        # Ranges and exact sizes have kernels of the same name.
        for name, one in sorted(
            found.choices.kernels.items(), key=lambda item: (item[1].name, found.timed[item[0]])
        )
    ]
    untimed = [("not timed", f"{name}: no call ran it") for name in sorted(found.untimed.values())]
    nothing = [] if untimed else ["no kernel of the entry has more than one configuration"]
    return [
        *facts(
            [
                ("tuned", f"{model} for {start.target}"),
                ("start", f"{start.outcome}, {start.entry_path or 'no entry'}"),
                ("tokens", ", ".join(map(str, found.counts))),
                ("choices", str(found.path)),
                *untimed,
            ],
            style,
        ),
        *below(table(("kernel", ">configs", "tokens", "chosen"), rows, style) if rows else nothing),
    ]


def tuned_json(found: Tuned, model: str) -> dict[str, Any]:
    """Returns the same as one object."""
    return {
        "model": model,
        "target": found.start.target,
        "outcome": found.start.outcome,
        "tokens": list(found.counts),
        "path": str(found.path),
        "digest": found.choices.digest,
        "untimed": dict(sorted(found.untimed.items())),
        "kernels": {
            name: {
                "name": one.name,
                "config": dict(one.config),
                "configs": found.configs[name],
                "tokens": list(found.timed[name]),
            }
            for name, one in sorted(found.choices.kernels.items())
        },
    }
