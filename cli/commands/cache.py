"""`graphkiln cache`: what lies in the cache, read without torch and without importing any model."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.errors import NO, YES
from graphkiln.cli.session import Session
from graphkiln.cli.show.entries import Row, row_of, rows_json, rows_lines, summary_text

app = typer.Typer(help="Lists and inspects cache entries; imports nothing that lies in them.")


class Order(StrEnum):
    """What `ls` can sort by; sizes and times come largest and newest first."""

    CREATED = "created"
    USED = "used"
    SIZE = "size"
    MODEL = "model"


@app.command("ls")
def ls(
    context: typer.Context,
    ids: Annotated[bool, typer.Option("--ids", help="Print ids only, one a line.")] = False,
    sort: Annotated[Order, typer.Option(help="Order of the rows.")] = Order.CREATED,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Print the first N only.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Lists the entries, broken ones too."""
    from graphkiln.cache.store.root import CacheRoot, resolve_root
    from graphkiln.cache.store.store import Store

    session: Session = context.obj
    root = resolve_root(session.cache_root)
    rows = ordered([row_of(entry) for entry in Store(CacheRoot(root)).entries()], sort)[:limit]
    if as_json:
        session.json("cache ls", {"root": str(root), "entries": rows_json(rows)})
    elif ids:
        session.data([row.id for row in rows])
    else:
        session.data(rows_lines(rows, session.style))
        session.talk(f"{summary_text(rows)} in {root}")
    return YES


def ordered(rows: list[Row], sort: Order) -> list[Row]:
    """Returns the rows in the order asked for; broken ones, which know little of themselves, stay last."""
    match sort:
        case Order.SIZE:
            rows = sorted(rows, key=lambda row: -row.bytes)
        case Order.USED:
            rows = sorted(rows, key=lambda row: row.last_used or "", reverse=True)
        case Order.MODEL:
            rows = sorted(rows, key=lambda row: row.model)
        case Order.CREATED:
            pass  # as the store gives them
    return sorted(rows, key=lambda row: not row.key)


@app.command("inspect")
def inspect(
    context: typer.Context,
    entry: Annotated[
        str,
        typer.Argument(
            metavar="ENTRY", help="A key, the beginning of one, a label, or a path.", show_default=False
        ),
    ],
    as_json: Json = False,
) -> int:
    """Shows one entry, every digest in it checked; with -v the values of its factors."""
    from graphkiln.cache.store.root import CacheRoot, resolve_root
    from graphkiln.cache.store.store import Store
    from graphkiln.cli.show.entry import entry_facts, entry_lines

    session: Session = context.obj
    store = Store(CacheRoot(resolve_root(session.cache_root)))
    found = store.resolve(entry)
    facts = entry_facts(found, store.starts())
    if as_json:
        session.json("cache inspect", facts)
    else:
        session.data(entry_lines(facts, session.style, every_value=session.verbosity > 0))
    return NO if facts["faults"] else YES
