"""`graphkiln precompile`: trace, compile, check and publish."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from graphkiln.cli.argv import ENGINE_WORDS
from graphkiln.cli.commands.asked import Asked, Json, with_deployment
from graphkiln.cli.commands.starting import require_allowed, started
from graphkiln.cli.errors import UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from graphkiln.core.report import Progress, StartReport


@partial(with_deployment, model_needed=False)
def precompile(
    session: Session,
    asked: Asked,
    *,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Publish without comparing compiled and eager.")
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="none|load",
            help="none: build the model of shapes, reading no weights; the default without a check.",
            show_default=False,
        ),
    ] = None,
    no_store_source: Annotated[
        bool, typer.Option("--no-store-source", help="Keep no copy of the traced source files.")
    ] = False,
    self_contained: Annotated[
        bool,
        typer.Option(
            "--self-contained", help="Put everything into the AOT file, to be shipped alone: warm --aot FILE."
        ),
    ] = False,
    debug_dump: Annotated[
        Path | None,
        typer.Option(
            "--debug-dump",
            metavar="DIR",
            help="Write graphs, guards and generated sources of the compile into DIR, to be read.",
            show_default=False,
        ),
    ] = None,
    choices: Annotated[
        Path | None,
        typer.Option(
            "--choices",
            metavar="FILE",
            help="Build each kernel with the configuration that `check --tune FILE` chose on the device.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="vllm[:DIR]",
            help="Let an installed vLLM fill its own cache: --engine vllm -- MODEL [OPTIONS OF vllm serve].",
            show_default=False,
        ),
    ] = None,
    engine_words: Annotated[str | None, typer.Option(ENGINE_WORDS, hidden=True)] = None,
    as_json: Json = False,
) -> int:
    """Traces MODEL, compiles it, checks it and publishes the entry."""
    if engine is not None:
        from graphkiln.cli.commands.precompile_engine import precompile_engine

        if no_check or weights or no_store_source or self_contained or debug_dump or choices:
            raise UsageProblem("--engine takes --json and --cache-root alone", "leave the others out")
        asked.need_none("goes to vLLM behind --")
        return precompile_engine(session, engine, json.loads(engine_words or "[]"), as_json=as_json)
    if not asked.model:
        raise UsageProblem("missing argument 'MODEL'", "graphkiln precompile --help says what it takes")
    if weights not in (None, "none", "load"):
        raise UsageProblem(f"--weights takes none or load, not {weights!r}")
    require_allowed(contained=self_contained)
    from graphkiln.core.target.description import is_description

    chosen = cast('Literal["none", "load"] | None', weights)
    deployment, config = asked.build()
    if weights == "none" and not no_check and not is_description(deployment.target):
        raise UsageProblem("--weights none leaves nothing to check with", "add --no-check")

    frozen = None
    if choices is not None:
        from graphkiln.core.choices import read_choices

        frozen = read_choices(choices)

    def begin(progress: Progress | None) -> StartReport:
        from graphkiln.core import start

        return start.precompile(
            deployment,
            config,
            check=not no_check,
            weights=chosen,
            store_source=not no_store_source,
            self_contained=self_contained,
            debug_dump=debug_dump,
            choices=frozen,
            cache_root=session.cache_root,
            progress=progress,
        )

    return started("precompile", session, asked, begin, as_json=as_json)
