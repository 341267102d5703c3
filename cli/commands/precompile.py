"""`graphkiln precompile`: trace, compile, check and publish."""

from __future__ import annotations

from typing import Annotated

import typer

from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.errors import NO, YES
from graphkiln.cli.session import Session
from graphkiln.cli.show.progress import progress_for
from graphkiln.cli.show.start import start_json, start_lines


@with_deployment
def precompile(
    session: Session,
    asked: Asked,
    *,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Publish without comparing compiled and eager.")
    ] = False,
    no_store_source: Annotated[
        bool, typer.Option("--no-store-source", help="Keep no copy of the traced source files.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Traces MODEL, compiles it, checks it and publishes the entry."""
    deployment, config = asked.build()
    from graphkiln.core import start

    with progress_for(session) as progress:
        report = start.precompile(
            deployment,
            config,
            check=not no_check,
            store_source=not no_store_source,
            cache_root=session.cache_root,
            progress=progress,
        )
    if as_json:
        session.json("precompile", start_json(report, asked.model))
    else:
        session.data(start_lines(report, asked.model, session.style))
    return YES if report.outcome in ("hit", "compiled") else NO
