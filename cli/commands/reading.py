"""`cache ls`, `cache inspect` and `cache diff`: entries listed, shown and compared."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.commands.foreign import (
    Layout,
    diff_of_foreign,
    foreign_catalogue,
    inspect_foreign,
    is_foreign,
)
from graphkiln.cli.commands.opening import ENTRY_HELP, Filters, open_store
from graphkiln.cli.errors import NO, YES
from graphkiln.cli.errors import UNKNOWN as NOT_KNOWN
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from graphkiln.cache.inspect.catalogue import Row


class Order(StrEnum):
    """What `ls` can sort by; sizes, counts and times come largest and newest first."""

    CREATED = "created"
    USED = "used"
    SIZE = "size"
    FILES = "files"
    HITS = "hits"
    MODEL = "model"
    LABEL = "label"
    STATUS = "status"


class FactorName(StrEnum):
    """The four factors of a key."""

    ENV = "env"
    CONFIG = "config"
    CODE = "code"
    COMPILER = "compiler"


def ls(
    context: typer.Context,
    layout: Layout = None,
    filters: Filters = None,
    sort: Annotated[
        Order, typer.Option(metavar="COLUMN", help=f"Order of the rows: {', '.join(Order)}.")
    ] = Order.CREATED,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Print the first N only.", show_default=False)
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print ids only, one a line.")] = False,
    as_json: Json = False,
) -> int:
    """Lists the entries, broken ones too."""
    from graphkiln.cache.inspect.catalogue import scan
    from graphkiln.cache.inspect.filters import select
    from graphkiln.cli.show.entries import rows_json, rows_lines, summary_text

    session: Session = context.obj
    catalogue = foreign_catalogue(session, layout) if layout else scan(open_store(session))
    rows = ordered(select(catalogue.rows, filters or ()), sort)[:limit]
    if as_json:
        session.json("cache ls", {"root": str(catalogue.root), "entries": rows_json(rows)})
    elif ids:
        session.data([row.id for row in rows])
    else:
        session.data(rows_lines(rows, session.style))
        shown = "" if len(rows) == len(catalogue.rows) else f" of {len(catalogue.rows)}"
        session.talk(f"{summary_text(rows, shown)} in {catalogue.root}")
    return YES


def ordered(rows: list[Row], sort: Order) -> list[Row]:
    """Returns the rows in the order asked for; those without a key, which know little, stay last."""
    match sort:
        case Order.SIZE:
            rows = sorted(rows, key=lambda row: -row.size)
        case Order.FILES:
            rows = sorted(rows, key=lambda row: -row.files)
        case Order.HITS:
            rows = sorted(rows, key=lambda row: -(row.hits or 0))
        case Order.USED:
            rows = sorted(rows, key=lambda row: row.last_used or "", reverse=True)
        case Order.MODEL:
            rows = sorted(rows, key=lambda row: row.model)
        case Order.LABEL:
            rows = sorted(rows, key=lambda row: (row.label is None, row.label or ""))
        case Order.STATUS:
            rows = sorted(rows, key=lambda row: row.status)
        case Order.CREATED:
            pass  # as the catalogue gives them
    return sorted(rows, key=lambda row: not row.key)


def inspect(
    context: typer.Context,
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help=ENTRY_HELP, show_default=False)],
    factors: Annotated[
        bool, typer.Option("--factors", help="Every value of the four factors; also with -v.")
    ] = False,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Every use and file of each piece, every kernel of attention.")
    ] = False,
    graphs: Annotated[bool, typer.Option("--graphs", help="The split graph as text.")] = False,
    source: Annotated[bool, typer.Option("--source", help="The traced source files as text.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of it, and every guard.")] = False,
    as_json: Json = False,
) -> int:
    """Shows one entry, every digest in it checked; exits 1 where it is damaged."""
    from graphkiln.cache.inspect.account import account
    from graphkiln.cli.show.entry import Shown, entry_lines

    session: Session = context.obj
    shown = Shown(
        factors=factors or everything or session.verbosity > 0,
        pieces=pieces or everything,
        graphs=graphs or everything,
        source=source or everything,
        guards=everything,
    )
    if is_foreign(entry):
        return inspect_foreign(session, entry, shown, as_json=as_json)
    store = open_store(session)
    found = account(store.resolve(entry), store.starts())
    if as_json:
        session.json("cache inspect", found.as_json())
    else:
        session.data(entry_lines(found, session.style, shown))
    return NO if found.faults else YES


def diff(
    context: typer.Context,
    a: Annotated[
        str,
        typer.Argument(metavar="A", help=ENTRY_HELP, show_default=False),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.", show_default=False)],
    factor: Annotated[
        FactorName | None, typer.Option(help="Compare this factor alone.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every line of every diff, every difference that follows.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Compares two entries: the causes first, with what would make B as A; exits 1 where they differ."""
    from graphkiln.cache.inspect.diff import SAME, UNKNOWN
    from graphkiln.cache.inspect.diff import diff as compared
    from graphkiln.cli.show.diff import diff_json, diff_lines

    session: Session = context.obj
    one = factor.value if factor else None
    if is_foreign(a) or is_foreign(b):
        found = diff_of_foreign(a, b, one)
    else:
        store = open_store(session)
        found = compared(store.resolve(a), store.resolve(b), one)
    if as_json:
        session.json("cache diff", diff_json(found))
    else:
        session.data(diff_lines(found, session.style, every=everything))
    return YES if found.verdict == SAME else NOT_KNOWN if found.verdict == UNKNOWN else NO
