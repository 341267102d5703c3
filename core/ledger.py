"""One start as one line of the ledger."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from typing import Any

from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.env import read
from graphkiln.core.plan import Plan
from graphkiln.core.report import StartReport

# A line has a limit of its own: the first reasons, their values cut. All of them are in the report.
_MOST_REASONS, _VALUE_LETTERS = 20, 200


def ledger_line(plan: Plan, report: StartReport, command: str) -> dict[str, Any]:
    """Returns what the ledger keeps of a start: outcome, reasons, seconds, counts, who and when."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "model": plan.label,
        "outcome": report.outcome,
        "key": report.key,
        "lookup": report.lookup,
        "reasons": [_short(reason) for reason in report.reasons[:_MOST_REASONS]],
        "phases": [[name, round(seconds, 3)] for name, seconds in report.phases],
        "counts": dict(report.counts),
        "pid": os.getpid(),
        "host": read("GRAPHKILN_HOST_LABEL") or socket.gethostname(),
    }


def _short(reason: Difference) -> dict[str, Any]:
    values = {"then": str(reason.then)[:_VALUE_LETTERS], "now": str(reason.now)[:_VALUE_LETTERS]}
    return {"factor": reason.factor, "name": reason.name, "kind": reason.kind, **values}
