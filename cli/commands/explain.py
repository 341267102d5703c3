"""`graphkiln explain`: what a start would do, and what stands in the way of a hit."""

from __future__ import annotations

from typing import Annotated

import typer

from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.errors import NO, UNKNOWN, YES
from graphkiln.cli.session import Session
from graphkiln.cli.show.progress import progress_for
from graphkiln.cli.show.stdout import talk_goes_to_stderr

STATUS = {"hit": YES, "unknown": UNKNOWN}


@with_deployment
def explain(
    session: Session,
    asked: Asked,
    *,
    trace: Annotated[
        bool, typer.Option("--trace", help="Trace the model, compiling nothing: no answer is unknown then.")
    ] = False,
    nearest: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most N entries on a miss.")] = 3,
    as_json: Json = False,
) -> int:
    """Tells whether a start of MODEL would hit, and on a miss what differs; -v shows all that follows.

    Exit status 0 for a hit, 1 for a miss, 3 where it cannot be known without --trace.
    """
    deployment, config = asked.build()
    with progress_for(session) as progress, talk_goes_to_stderr():
        if progress:
            progress.phase("trace" if trace else "plan")
        from graphkiln.cli.show.explain import explain_json, explain_lines
        from graphkiln.core.explain import explain as explained

        found = explained(deployment, config, trace=trace, cache_root=session.cache_root, limit=nearest)
    if as_json:
        session.json("explain", explain_json(found, asked.model))
    else:
        session.data(explain_lines(found, asked.model, session.style, every=session.verbosity > 0))
    return STATUS.get(found.outcome, NO)
