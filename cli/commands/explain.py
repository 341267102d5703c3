"""`graphkiln explain`: what a start would do, and what stands in the way of a hit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.errors import NO, UNKNOWN, YES, UsageProblem
from graphkiln.cli.session import Session
from graphkiln.cli.show.progress import progress_for
from graphkiln.cli.show.stdout import talk_goes_to_stderr

if TYPE_CHECKING:
    from graphkiln.cache.layouts.environments import Environment

STATUS = {"hit": YES, "unknown": UNKNOWN}
ENGINE = "Starts of another engine"


@partial(with_deployment, model_needed=False)
def explain(
    session: Session,
    asked: Asked,
    *,
    trace: Annotated[
        bool, typer.Option("--trace", help="Trace the model, compiling nothing: no answer is unknown then.")
    ] = False,
    nearest: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most N entries on a miss.")] = 3,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="vllm[:DIR]",
            help="Compare an environment with vLLM's cache, which needs no MODEL.",
            rich_help_panel=ENGINE,
            show_default=False,
        ),
    ] = None,
    env_file: Annotated[
        str | None,
        typer.Option(
            "--env-file",
            metavar="FILE",
            help="Output of env, NAME=VALUE lines, or a pod spec; - is stdin.",
            rich_help_panel=ENGINE,
            show_default=False,
        ),
    ] = None,
    env_from: Annotated[
        int | None,
        typer.Option(
            "--env-from",
            metavar="PID",
            min=1,
            help="The environment of a running process.",
            rich_help_panel=ENGINE,
            show_default=False,
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(
            "--container",
            metavar="NAME",
            help="Which container of the pod spec.",
            rich_help_panel=ENGINE,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Tells whether a start of MODEL would hit, and on a miss what differs; -v shows all that follows.

    Exit status 0 for a hit, 1 for a miss, 3 where it cannot be known without --trace.
    """
    if engine is not None:
        if asked.model:
            raise UsageProblem("--engine takes no MODEL", "it compares an environment: leave MODEL out")
        return explain_engine(session, engine, env_file, env_from, container, nearest, as_json=as_json)
    if env_file is not None or env_from is not None or container is not None:
        raise UsageProblem("--env-file, --env-from and --container need an engine", "add --engine vllm")
    if not asked.model:
        raise UsageProblem("missing argument 'MODEL'", "graphkiln explain --help says what it takes")
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


def explain_engine(
    session: Session,
    engine: str,
    env_file: str | None,
    env_from: int | None,
    container: str | None,
    limit: int,
    *,
    as_json: bool,
) -> int:
    """Compares an environment with the entries of vLLM's cache."""
    from graphkiln.cache.layouts.readers import open_tree
    from graphkiln.cache.layouts.vllm.explain import explain_environment
    from graphkiln.cli.commands.foreign import tree_of
    from graphkiln.cli.show.explain import explain_json, explain_lines

    if engine.partition(":")[0] != "vllm":
        raise UsageProblem(f"no engine {engine.partition(':')[0]!r}", "--engine vllm[:DIR]")
    given = environment_of(env_file, env_from, container)
    found = explain_environment(open_tree(tree_of(session, engine), given.seen_from_here()), given, limit)
    if as_json:
        session.json("explain", explain_json(found, "vllm"))
    else:
        session.data(explain_lines(found, "vllm", session.style, every=session.verbosity > 0))
    return STATUS.get(found.outcome, NO)


def environment_of(env_file: str | None, env_from: int | None, container: str | None) -> Environment:
    """Returns the one environment that was asked for."""
    from graphkiln.cache.layouts.environments import of_file, of_process

    if (env_file is None) is (env_from is None):
        what = (
            "one of --env-file and --env-from" if env_file is None else "not both --env-file and --env-from"
        )
        raise UsageProblem(f"--engine needs {what}", "env | graphkiln explain --engine vllm --env-file -")
    if env_from is not None:
        return of_process(env_from)
    assert env_file is not None
    return of_file(env_file, container)
