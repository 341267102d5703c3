"""What `precompile`, `warm` and `check --emulate` share: progress, what became of the start, the exit."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphkiln.cli.commands.asked import Asked
from graphkiln.cli.errors import NO, YES, UsageProblem
from graphkiln.cli.session import Session
from graphkiln.cli.show.progress import progress_for
from graphkiln.cli.show.start import start_json, start_lines, with_import
from graphkiln.cli.show.stdout import talk_goes_to_stderr

if TYPE_CHECKING:
    from graphkiln.core.report import Progress, StartReport


def started(
    command: str,
    session: Session,
    asked: Asked,
    begin: Callable[[Progress | None], StartReport],
    *,
    as_json: bool,
) -> int:
    """Runs `begin`, prints its report, and returns 0 where a start hits now."""
    from graphkiln.core.collector import collector_paused
    from graphkiln.core.target.child import begun_ahead

    with progress_for(session) as progress, talk_goes_to_stderr(), begun_ahead(asked.target):
        if progress:
            progress.phase("import")
        with collector_paused():
            importlib.import_module("graphkiln.core.start")
        imported = session.seconds()
        report = with_import(begin(progress), imported)
    if as_json:
        session.json(command, start_json(report, asked.model))
    else:
        session.data(start_lines(report, asked.model, session.style))
    return YES if report.outcome in ("hit", "compiled") else NO


def require_allowed(**asked: Any) -> None:
    """Raises UsageProblem for a demand, as `aot_use` takes it, that the environment forbids."""
    from graphkiln.core.aot_use import aot_use

    try:
        aot_use(**asked)
    except ValueError as error:
        raise UsageProblem(str(error)) from error
