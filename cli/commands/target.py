"""`graphkiln target`: the devices that can be compiled for, and the description of the one here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.errors import YES
from graphkiln.cli.session import Session

app = typer.Typer(help="Lists, shows and writes descriptions of devices to compile for.")
Name = Annotated[
    str, typer.Argument(metavar="TARGET", help="A name that list shows, or a file.", show_default=False)
]


@app.command("list")
def list_targets(context: typer.Context, as_json: Json = False) -> int:
    """Lists the built-in descriptions of GPUs, and the instruction sets of CPUs."""
    from graphkiln.cli.show.target import list_lines
    from graphkiln.core.target.cpu import cpu_targets
    from graphkiln.core.target.description import built_in, read_description

    session: Session = context.obj
    described = [read_description(path) for path in built_in().values()]
    if as_json:
        rows = [{"name": one.title, **one.as_json()} for one in described]
        session.json("target list", {"described": rows, "cpu": [one.name for one in cpu_targets()]})
    else:
        session.data(list_lines(described, cpu_targets(), session.style))
    return YES


@app.command()
def show(context: typer.Context, name: Name, as_json: Json = False) -> int:
    """Shows a description: what of the device reaches code, what it was seen with, where it is from."""
    from graphkiln.cli.show.target import description_lines
    from graphkiln.core.target.description import find_description

    session: Session = context.obj
    found = find_description(name)
    if as_json:
        session.json("target show", {"name": found.title, **found.as_json()})
    else:
        session.data(description_lines(found, session.style))
    return YES


@app.command()
def describe(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there instead.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """Prints the description of the CUDA device here, to be compiled for where it is not."""
    import json

    from graphkiln.core.target.cuda import describe_live

    session: Session = context.obj
    found = describe_live()
    text = json.dumps(found.as_json(), indent=1)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        session.json("target describe", {"name": found.title, "written": output, **found.as_json()})
    elif output is None:
        session.data([text])
    else:
        session.talk(f"written: {output}; compile for it with --target {output}")
    return YES
