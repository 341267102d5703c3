"""The numeric check of one start: every part, compiled against eager, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphkiln.core.errors import CheckFailed
from graphkiln.core.journal import Journal
from graphkiln.core.part import Part
from graphkiln.core.parts import Context
from graphkiln.core.report import CheckReport, CheckRow


def compare(
    journal: Journal,
    parts: Sequence[Part],
    smallest: Sequence[int],
    serve: Sequence[Callable[..., Any]],
    context: Context,
) -> None:
    """Compares what serves each part with its forward and keeps the rows; `smallest` is a least count each.

    Raises CheckFailed for the first row over its limit.
    """
    from graphkiln.core.compile.check import check_counts, check_part

    with journal.phases.phase("check"):
        rows: list[CheckRow] = []
        for part, least, compiled in zip(parts, smallest, serve, strict=True):
            counts = check_counts(journal.plan.ranges(least, part.encoder))
            rows += check_part(compiled, part.module, part.arguments, context, counts).rows
        journal.check = CheckReport(tuple(rows))
    for row in rows:
        if not row.ok:
            raise CheckFailed(row.num_tokens, row.max_abs_error, row.tolerance)
