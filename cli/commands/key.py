"""`graphkiln key`: the key of a deployment and its factors."""

from __future__ import annotations

from typing import Annotated

import typer

from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.errors import YES
from graphkiln.cli.session import Session
from graphkiln.cli.show.key import key_json, key_lines
from graphkiln.cli.show.progress import progress_for
from graphkiln.cli.show.stdout import talk_goes_to_stderr


@with_deployment
def key(
    session: Session,
    asked: Asked,
    *,
    no_trace: Annotated[
        bool, typer.Option("--no-trace", help="Print the lookup and what it is made of; trace nothing.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Prints the key of MODEL and its factors; compiles nothing. With -q only the key."""
    from graphkiln.core.target.child import begun_ahead

    deployment, config = asked.build()
    with (
        progress_for(session) as progress,
        talk_goes_to_stderr(),
        begun_ahead(None if no_trace else asked.target),
    ):
        if progress:
            progress.phase("plan" if no_trace else "trace")
        from graphkiln.core import start

        report = start.key(deployment, config, trace=not no_trace)
    if as_json:
        session.json("key", key_json(report, asked.model))
    elif session.quiet:
        session.data([report.key or report.lookup])
    else:
        session.data(key_lines(report, session.style, every_value=session.verbosity > 0))
    return YES
