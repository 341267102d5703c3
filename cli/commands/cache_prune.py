"""`cache prune` and `cache rm`: a plan first, then the removal if somebody says yes."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.commands.opening import (
    Filters,
    Grace,
    Yes,
    agreed,
    duration,
    grace_of,
    open_store,
    quantity,
    size,
)
from graphkiln.cli.errors import NO, YES, UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
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
    filters: Filters = None,
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
    from graphkiln.cli.show.prune import plan_json, plan_lines, plan_text, removed_lines

    session: Session = context.obj
    store = open_store(session)
    grace_s = grace_of(grace)
    rules = Rules(
        older_than=quantity("--older-than", older_than, duration),
        unused_since=quantity("--unused-since", unused_since, duration),
        max_files=max_files,
        keep_last=keep_last,
        superseded=superseded,
        broken=broken,
        filters=tuple(filters or ()),
        by_stale=bool(stale),
        max_size=whole(quantity("--max-size", max_size, size)),
        min_free=whole(quantity("--min-free", min_free, size)),
    )
    if rules.empty:
        raise UsageProblem(
            "prune needs a rule", "--unused-since 30d, --superseded, --max-size 20GB; --help lists them"
        )
    catalogue = scan(store)
    unknown: dict[str, str] = {}
    if stale:
        found, unknown = find_stale(select(catalogue.rows, rules.filters), [str(factor) for factor in stale])
        rules = replace(rules, stale=found)
    beside = leftovers(store.root) if broken and not rules.filters else []
    plan = make_plan(catalogue, rules, leftovers=beside, free_bytes=free_bytes(store.root))
    nothing = not plan.doomed and not plan.leftovers
    if not as_json:
        session.data(plan_lines(plan, unknown, session.style))
        session.talk(plan_text(plan))
    done: Removed | None = None
    if not nothing and agreed(session, yes, "remove them?", ask=not as_json):
        done = remove(store, plan, grace_s)
    if as_json:
        session.json("cache prune", plan_json(plan, unknown, done))
    elif done is not None:
        for line in removed_lines(done, grace_s):
            session.talk(line)
    return NO if done is not None and done.skipped else YES


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
    from graphkiln.cli.show.prune import plan_json, plan_lines, plan_text, removed_lines

    session: Session = context.obj
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
    if not as_json:
        session.data(plan_lines(plan, {}, session.style))
        session.talk(plan_text(plan))
    done: Removed | None = None
    if agreed(session, yes, "remove them?", ask=not as_json):
        done = remove_rows(store, doomed, grace_s)
    if as_json:
        session.json("cache rm", plan_json(plan, {}, done))
    elif done is not None:
        for line in removed_lines(done, grace_s):
            session.talk(line)
    return NO if done is not None and done.skipped else YES
