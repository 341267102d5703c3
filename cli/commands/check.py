"""`graphkiln check`: the CUDA graphs of a deployment, captured where their device is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.commands.starting import started
from graphkiln.cli.errors import NO, NOT_HERE, YES, UsageProblem
from graphkiln.cli.session import Session
from graphkiln.cli.show.progress import progress_for
from graphkiln.cli.show.stdout import talk_goes_to_stderr

if TYPE_CHECKING:
    from graphkiln.core.config.compilation import CompilationConfig
    from graphkiln.core.deployment import Deployment
    from graphkiln.core.report import Progress, StartReport


@with_deployment
def check(
    session: Session,
    asked: Asked,
    *,
    traffic: Annotated[
        Path | None,
        typer.Option(
            "--traffic",
            metavar="FILE",
            help='How often steps of which size are served, in tokens: {"1": 900, "32": 40}.',
            show_default=False,
        ),
    ] = None,
    emulate: Annotated[
        bool,
        typer.Option(
            "--emulate",
            help="For a --target that is not here: load the entry as it would, nothing to compile with.",
        ),
    ] = False,
    tune: Annotated[
        Path | None,
        typer.Option(
            "--tune",
            metavar="FILE",
            help="On the device: time the configurations of each kernel, and write the best to FILE.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Captures the CUDA graphs of MODEL, compares each with eager, times it, and gives all of them back.

    Without their device it shows which there would be and which of them serves which step, and exits 4.
    A deployment that wants no graphs exits 0; where some were asked for and cannot be, and for a factory, 1.
    """
    if emulate and traffic is not None:
        raise UsageProblem("--traffic weighs what is captured, and --emulate captures nothing", "drop one")
    if tune is not None and (emulate or traffic is not None):
        raise UsageProblem("--tune captures nothing and needs the device", "drop --emulate and --traffic")
    weights = None if traffic is None else read(traffic)
    deployment, config = asked.build()
    if tune is not None:
        return tuned(session, asked, deployment, config, tune, as_json=as_json)
    if emulate:
        return emulated(session, asked, deployment, config, as_json=as_json)
    with progress_for(session) as progress, talk_goes_to_stderr():
        if progress:
            progress.phase("import")
        from graphkiln.cli.show.graphs import graph_json, graph_lines
        from graphkiln.core.check import check as checked

        report = checked(
            deployment, config, traffic=weights, cache_root=session.cache_root, progress=progress
        )
    if as_json:
        session.json("check", graph_json(report, asked.model))
    else:
        session.data(graph_lines(report, asked.model, session.style))
    if report.capture is not None:
        return YES if report.ok else NO
    if report.absent:
        return NOT_HERE
    return NO if report.refused else YES


def emulated(
    session: Session, asked: Asked, deployment: Deployment, config: CompilationConfig, *, as_json: bool
) -> int:
    """Loads an entry in a process that sees its device and finds nothing to compile with."""
    from graphkiln.core.target.description import is_description

    if not is_description(deployment.target):
        raise UsageProblem("--emulate stands for a device that is not here", "name it: --target h200")

    def begin(progress: Progress | None) -> StartReport:
        from graphkiln.core import start

        return start.warm(
            deployment, config, require_hit=True, cache_root=session.cache_root, progress=progress
        )

    return started("check", session, asked, begin, as_json=as_json)


def tuned(
    session: Session,
    asked: Asked,
    deployment: Deployment,
    config: CompilationConfig,
    path: Path,
    *,
    as_json: bool,
) -> int:
    """Times the configurations of a loaded model's kernels, and freezes the choices."""
    if not path.parent.is_dir():
        raise UsageProblem(
            f"--tune {path}: there is no folder {path.parent}", "make it, or name another file"
        )
    if path.is_dir():
        raise UsageProblem(f"--tune {path} is a folder", "name a file in it")
    with progress_for(session) as progress, talk_goes_to_stderr():
        if progress:
            progress.phase("import")
        from graphkiln.cli.show.tuned import tuned_json, tuned_lines
        from graphkiln.core.tuning import tune

        found = tune(deployment, config, path, cache_root=session.cache_root, progress=progress)
    if as_json:
        session.json("check", tuned_json(found, asked.model))
    else:
        session.data(tuned_lines(found, asked.model, session.style))
    return YES


def read(path: Path) -> dict[int, float]:
    """Returns the traffic in a file; one that cannot be read is bad input."""
    from graphkiln.core.graphs.traffic import TRAFFIC_FORM, read_traffic

    try:
        return read_traffic(path)
    except ValueError as error:
        raise UsageProblem(f"--traffic: {error}", f"it takes {TRAFFIC_FORM}") from None
