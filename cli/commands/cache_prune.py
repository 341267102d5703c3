"""`cache prune` and `cache rm`: a plan first, then the removal if somebody says yes."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.commands.foreign import Layout, foreign_catalogue, foreign_entry, is_foreign
from graphkiln.cli.commands.opening import (
    Filters,
    Grace,
    Yes,
    duration,
    grace_of,
    open_store,
    quantity,
    size,
)
from graphkiln.cli.commands.removing import carried_out
from graphkiln.cli.errors import UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from graphkiln.cache.inspect.prune import Rules
    from graphkiln.cache.inspect.removal import Removed

LIMITS, RULES = "Until a limit holds, used longest ago first", "What goes"


class Factor(StrEnum):
    """A factor of the key."""

    ENV = "env"
    CONFIG = "config"
    CODE = "code"
    COMPILER = "compiler"


def text(metavar: str, help_text: str, panel: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        metavar=metavar, help=help_text, rich_help_panel=panel, show_default=False
    )
    return option


def prune(
    context: typer.Context,
    older_than: Annotated[str | None, text("TIME", "Made longer ago: 30d, 12h.", RULES)] = None,
    unused_since: Annotated[str | None, text("TIME", "Not used for that long.", RULES)] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="All but the newest N of each model.",
            rich_help_panel=RULES,
            show_default=False,
        ),
    ] = None,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Older code or compiler.", rich_help_panel=RULES)
    ] = False,
    stale: Annotated[
        list[Factor] | None,
        typer.Option(
            metavar="FACTOR",
            help="What this machine cannot hit because of its env, config, code or compiler.",
            rich_help_panel=RULES,
            show_default=False,
        ),
    ] = None,
    broken: Annotated[
        bool,
        typer.Option(
            "--broken", help="Broken entries, quarantine, drafts of the dead.", rich_help_panel=RULES
        ),
    ] = False,
    litter: Annotated[
        bool,
        typer.Option("--litter", help="With --layout: what no start can load.", rich_help_panel=RULES),
    ] = False,
    filters: Filters = None,
    layout: Layout = None,
    max_size: Annotated[str | None, text("SIZE", "Most bytes: 20GB, 512MiB.", LIMITS)] = None,
    max_files: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Most files.", rich_help_panel=LIMITS, show_default=False),
    ] = None,
    min_free: Annotated[str | None, text("SIZE", "Least bytes free on the disk.", LIMITS)] = None,
    grace: Grace = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Removes entries that a rule names; never a pinned or labelled one. Filters narrow the rules."""
    from graphkiln.cache.inspect.catalogue import scan
    from graphkiln.cache.inspect.filters import select
    from graphkiln.cache.inspect.prune import Rules, make_plan
    from graphkiln.cache.inspect.removal import free_bytes, leftovers, remove
    from graphkiln.cli.commands.stale import find_stale

    session: Session = context.obj
    grace_s = grace_of(grace)
    rules = Rules(
        older_than=quantity("--older-than", older_than, duration),
        unused_since=quantity("--unused-since", unused_since, duration),
        max_files=max_files,
        keep_last=keep_last,
        superseded=superseded,
        broken=broken,
        litter=litter,
        filters=tuple(filters or ()),
        by_stale=bool(stale),
        max_size=whole(quantity("--max-size", max_size, size)),
        min_free=whole(quantity("--min-free", min_free, size)),
    )
    if rules.empty:
        raise UsageProblem(
            "prune needs a rule", "--unused-since 30d, --superseded, --max-size 20GB; --help lists them"
        )
    if layout:
        if stale or grace:
            raise UsageProblem("--stale and --grace are for entries of graphkiln", "leave them out")
        return prune_foreign(session, layout, rules, yes=yes, as_json=as_json)
    store = open_store(session)
    catalogue = scan(store)
    unknown: dict[str, str] = {}
    if stale:
        found, unknown = find_stale(select(catalogue.rows, rules.filters), [str(factor) for factor in stale])
        rules = replace(rules, stale=found)
    beside = leftovers(store.root) if broken and not rules.filters else []
    plan = make_plan(catalogue, rules, leftovers=beside, free_bytes=free_bytes(store.root))
    return carried_out(
        session,
        "cache prune",
        plan,
        lambda: remove(store, plan, grace_s),
        places=(store.root.path, store.root.cache),
        yes=yes,
        as_json=as_json,
        unknown=unknown,
        grace_s=grace_s,
    )


def prune_foreign(session: Session, layout: str, rules: Rules, *, yes: bool, as_json: bool) -> int:
    """Removes entries of another program's tree that a rule names."""
    from graphkiln.cache.inspect.prune import make_plan
    from graphkiln.cache.inspect.removal import free_on_disk
    from graphkiln.cache.layouts.removal import places_of, remove_foreign, sweep

    catalogue = foreign_catalogue(session, layout)
    plan = make_plan(catalogue, rules, free_bytes=free_on_disk(catalogue.root))
    rows = [item.row for item in plan.doomed]

    def remove() -> Removed:
        sweep(places_of(catalogue.rows))
        return remove_foreign(rows)

    return carried_out(
        session, "cache prune", plan, remove, places=places_of(rows), yes=yes, as_json=as_json
    )  # fmt: skip


def whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def rm(
    context: typer.Context,
    entries: Annotated[
        list[str],
        typer.Argument(
            metavar="ENTRY...", help="Keys, beginnings of keys, labels or paths.", show_default=False
        ),
    ],
    grace: Grace = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Removes the named entries, broken ones too; a pinned one has to be unpinned first."""
    from graphkiln.cache.inspect.catalogue import find_row, scan
    from graphkiln.cache.inspect.prune import Doomed, Plan
    from graphkiln.cache.inspect.removal import remove_rows

    session: Session = context.obj
    if any(map(is_foreign, entries)):
        return rm_foreign(session, entries, yes=yes, as_json=as_json)
    store = open_store(session)
    grace_s = grace_of(grace)
    catalogue = scan(store)
    rows = list(dict.fromkeys(find_row(catalogue, name).path for name in entries))
    doomed = [row for row in catalogue.rows if row.path in rows]
    for row in doomed:
        if row.pinned:
            raise UsageProblem(f"{row.id} is pinned", f"graphkiln cache unpin {row.id}")
        if row.foreign:
            hint = f"look at {row.path}, and remove it by hand"
            if row.foreign != (".",):
                hint = f"graphkiln cache verify --repair {row.id} sets such files aside"
            what = (
                "is nothing of graphkiln's" if row.foreign == (".",) else f"holds {row.foreign[0]}, not ours"
            )
            raise UsageProblem(f"{row.id} {what}", hint)
    gone = {row.path for row in doomed}
    rest = [row for row in catalogue.rows if row.path not in gone]
    plan = Plan(
        tuple(Doomed(row, "named") for row in doomed),
        kept_size=sum(row.size for row in rest),
        kept_files=sum(row.files for row in rest),
    )
    return carried_out(
        session,
        "cache rm",
        plan,
        lambda: remove_rows(store, doomed, grace_s),
        places=(store.root.path, store.root.cache),
        yes=yes,
        as_json=as_json,
        grace_s=grace_s,
    )


def rm_foreign(session: Session, entries: list[str], *, yes: bool, as_json: bool) -> int:
    """Removes the named entries of other programs' trees."""
    from graphkiln.cache.inspect.prune import Doomed, Plan
    from graphkiln.cache.layouts.removal import places_of, remove_foreign

    own = [entry for entry in entries if not is_foreign(entry)]
    if own:
        raise UsageProblem(f"{own[0]} is of graphkiln, others are not", "remove them in two commands")
    rows = list({row.path: row for row in (foreign_entry(entry, named=True) for entry in entries)}.values())
    plan = Plan(tuple(Doomed(row, "named" + row.doubt) for row in rows))
    return carried_out(
        session, "cache rm", plan, lambda: remove_foreign(rows), places=places_of(rows), yes=yes,
        as_json=as_json,
    )  # fmt: skip
