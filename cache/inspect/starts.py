"""What became of a noted start, in the words of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def outcome_of(start: Mapping[str, Any]) -> str:
    """Return hit, compiled, miss, partial, bypass or rejected.

    A start that had to compile although an entry was there is told apart: rejected where that entry was
    damaged or could not be loaded here, partial where only some of its pieces were compiled again.
    """
    outcome = str(start.get("outcome", ""))
    if outcome in ("compiled", "miss"):
        counts = start.get("counts")
        if isinstance(counts, Mapping) and counts.get("artifacts_loaded") and counts.get("kernels_compiled"):
            return "partial"
        reasons = start.get("reasons")
        names = [
            str(reason.get("name", ""))
            for reason in (reasons if isinstance(reasons, list) else [])
            if isinstance(reason, Mapping)
        ]
        if any(name.startswith("entry ") for name in names):
            return "rejected"
    return outcome
