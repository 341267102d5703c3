"""`graphkiln warm`: make sure that a start would hit, or say that it would not."""

from __future__ import annotations

from typing import Annotated

import typer

from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.errors import NO, YES
from graphkiln.cli.session import Session
from graphkiln.cli.show.progress import progress_for
from graphkiln.cli.show.start import start_json, start_lines


@with_deployment
def warm(
    session: Session,
    asked: Asked,
    *,
    require_hit: Annotated[
        bool, typer.Option("--require-hit", help="Compile nothing; exit 1 where a start would not hit.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Starts MODEL as a server would, publishing what is missing, without the numeric check."""
    deployment, config = asked.build()
    from graphkiln.core import start

    with progress_for(session) as progress:
        report = start.warm(
            deployment, config, require_hit=require_hit, cache_root=session.cache_root, progress=progress
        )
    if as_json:
        session.json("warm", start_json(report, asked.model))
    else:
        session.data(start_lines(report, asked.model, session.style))
    return YES if report.outcome in ("hit", "compiled") else NO
