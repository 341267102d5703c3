"""`graphkiln warm`: make sure that a start would hit, or say that it would not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.commands.starting import require_allowed, started
from graphkiln.cli.errors import UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from graphkiln.core.report import Progress, StartReport


@with_deployment
def warm(
    session: Session,
    asked: Asked,
    *,
    require_hit: Annotated[
        bool, typer.Option("--require-hit", help="Compile nothing; exit 1 where a start would not hit.")
    ] = False,
    aot: Annotated[
        str | None,
        typer.Option(
            "--aot",
            metavar="FILE",
            help="Open this AOT file before the cache is asked; precompile --self-contained makes one.",
            show_default=False,
        ),
    ] = None,
    force_aot_load: Annotated[
        bool,
        typer.Option("--force-aot-load", help="Exit 1, naming why, where no AOT file serves the start."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Starts MODEL as a server would, publishing what is missing, without the numeric check."""
    file = None if aot is None else readable(aot)
    require_allowed(path=file, force=force_aot_load)
    deployment, config = asked.build()

    def begin(progress: Progress | None) -> StartReport:
        from graphkiln.core import start

        return start.warm(
            deployment,
            config,
            require_hit=require_hit,
            aot=file,
            force_aot_load=force_aot_load,
            cache_root=session.cache_root,
            progress=progress,
        )

    return started("warm", session, asked, begin, as_json=as_json)


def readable(typed: str) -> Path:
    """Returns the path of the file that was typed; one that cannot be opened is bad usage."""
    path, hint = Path(typed), "name an AOT file, or leave --aot out for those of the cache"
    if not typed:
        # An empty path would be the current folder; what was meant is likely a variable that is not set.
        raise UsageProblem("--aot is empty", hint)
    if path.exists() and not path.is_file():
        raise UsageProblem(f"--aot: {path} is not a regular file", hint)
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageProblem(f"--aot: {path}: {(error.strerror or str(error)).lower()}", hint) from error
    return path
