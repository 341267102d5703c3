"""`cache starts`: the ledger of what was started, and what became of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.commands.opening import open_store
from graphkiln.cli.errors import YES, UsageProblem
from graphkiln.cli.session import Session

COLUMNS = ("outcome", "command", "model", "key", "host", "pid")
OUTCOMES = ("hit", "compiled", "miss", "partial", "bypass", "rejected")


def starts(
    context: typer.Context,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="EXPR",
            help="Such as outcome=hit, model~llama, host!=ci; may be repeated.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="The newest N.")] = 20,
    as_json: Json = False,
) -> int:
    """Lists starts, newest first: hit, miss, partial, bypass or rejected, why, and seconds per phase."""
    from graphkiln.cache.inspect.starts import outcome_of
    from graphkiln.cli.show.starts import starts_lines, starts_text

    session: Session = context.obj
    store = open_store(session)
    noted = [{**start, "outcome": outcome_of(start)} for start in store.starts()]
    found = [start for start in reversed(noted) if all(holds(start, text) for text in filters or [])]
    if as_json:
        session.json("cache starts", {"starts": found[:limit], "total": len(found)})
    else:
        session.data(starts_lines(found[:limit], session.style))
        session.talk(starts_text(found, limit))
    return YES


def holds(start: dict[str, Any], expression: str) -> bool:
    """Returns whether a start is as all terms of an expression say."""
    import re

    for term in re.split(r"\s+and\s+", expression.strip()):
        match = re.fullmatch(r"([a-z]+)\s*(!=|!~|=|~)\s*(.*)", term)
        if match is None or match[1] not in COLUMNS:
            names = ", ".join(COLUMNS)
            raise UsageProblem(f"filter {term!r} is not understood", f"it is NAME=TEXT, NAME one of {names}")
        name, sign, wanted = match[1], match[2], match[3]
        if name == "outcome" and "~" not in sign and wanted not in OUTCOMES:
            raise UsageProblem(f"filter {term!r}: no such outcome", f"good ones are {', '.join(OUTCOMES)}")
        value = str(start.get(name) or "")
        if sign in ("~", "!~"):
            same = wanted.lower() in value.lower()
        else:
            same = value.startswith(wanted) if name == "key" else value == wanted
        if same is sign.startswith("!"):
            return False
    return True
