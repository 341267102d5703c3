"""`cache verify` and `cache restore`: are the entries what they say they are, and back with one set aside."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.commands.foreign import Layout, is_foreign, need_own, verify_foreign
from graphkiln.cli.commands.opening import Filters, open_store
from graphkiln.cli.errors import NO, YES, UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from graphkiln.cache.store.store import Store

OneEntry = Annotated[
    str | None,
    typer.Argument(metavar="ENTRY", help="One entry; all of them if it is not given.", show_default=False),
]


def verify(
    context: typer.Context,
    entry: OneEntry = None,
    layout: Layout = None,
    filters: Filters = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Set aside what is broken or fails its smoke call, with the reason."),
    ] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Load each sound entry in a child process and call it once.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Checks every byte, name, rank, piece and owner; exits 1 where anything is not as it should be."""
    from graphkiln.cache.inspect.catalogue import scan
    from graphkiln.cache.inspect.repair import repair as set_aside
    from graphkiln.cache.inspect.repair import set_aside_failing
    from graphkiln.cache.inspect.verify import verify_entries, verify_lone
    from graphkiln.cache.store.surroundings import concerns
    from graphkiln.cli.show.byte_progress import byte_progress
    from graphkiln.cli.show.verify import smoke_lines, verdicts_json, verdicts_lines, verdicts_text

    session: Session = context.obj
    if layout or is_foreign(entry):
        if repair or smoke:
            raise UsageProblem(
                "--repair and --smoke are for entries of graphkiln", "other trees are only read"
            )
        if layout and entry is not None:
            raise UsageProblem("--layout names a whole tree", f"name one entry as {layout}#{entry} alone")
        return verify_foreign(session, entry, layout, filters or [], as_json=as_json)
    store = open_store(session)
    paths = chosen(store, entry, filters or [])
    with byte_progress(session, "verifying") as progress:
        verdicts = verify_entries(paths, progress)
        lone = verify_lone(scan(store).lone) if entry is None and not filters else []
    told = concerns(store.root.cache)
    inside = [verdict for verdict in verdicts if verdict.path.parent == store.root.cache]
    repaired = [moved for verdict in inside for moved in set_aside(store, verdict)] if repair else []
    smoked = {verdict.id: smoke_call(verdict.path) for verdict in verdicts if smoke and not verdict.damaged}
    failing = [verdict for verdict in inside if verdict.id in smoked and smoked[verdict.id]["ok"] is False]
    if repair:
        details = [str(smoked[verdict.id]["detail"]) for verdict in failing]
        repaired += map(set_aside_failing, repeat(store), failing, details)
        repaired += [moved for verdict in lone for moved in set_aside(store, verdict)]
    verdicts += lone
    if as_json:
        session.json("cache verify", verdicts_json(verdicts, told, repaired, smoked))
    else:
        session.data(verdicts_lines(verdicts, told, repaired, session.style))
        session.data(smoke_lines(smoked))
        session.talk(f"{verdicts_text(verdicts)} in {store.root.path}")
    sound = all(verdict.status == "sound" for verdict in verdicts)
    return YES if sound and all(result["ok"] is not False for result in smoked.values()) else NO


def chosen(store: Store, entry: str | None, filters: list[str]) -> list[Path]:
    """Returns the folders of one entry, or of all that the filters select; a path may lead anywhere."""
    import os
    from pathlib import Path

    from graphkiln.cache.inspect.catalogue import find_row, scan
    from graphkiln.cache.inspect.filters import select
    from graphkiln.cache.store.layout import could_be_entry

    catalogue = scan(store)
    if entry is not None and os.sep in entry and could_be_entry(Path(entry)):
        return [Path(os.path.abspath(entry))]
    rows = [find_row(catalogue, entry)] if entry is not None else list(catalogue.rows)
    return [row.path for row in select(rows, filters)]


def smoke_call(path: Path) -> dict[str, object]:
    """Returns what a child process says that loaded an entry and called it: ok, and what happened."""
    import json
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "graphkiln.core.smoke", str(path)], capture_output=True, text=True
    )
    try:
        result = json.loads(done.stdout.splitlines()[-1])
        return {"ok": result["ok"], "detail": str(result["detail"])}
    except (ValueError, IndexError, KeyError, TypeError):
        # A crash in compiled code leaves no word but the signal.
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"ok": False, "detail": f"the child process died: {last[0]}"}


def restore(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="What to bring back; without it, what there is.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Brings an entry back from quarantine after verifying it; lists the quarantine without a name."""
    from graphkiln.cache.inspect.repair import find_quarantined, quarantined
    from graphkiln.cache.inspect.repair import restore as bring_back
    from graphkiln.cli.show.verify import quarantine_json, quarantine_lines

    session: Session = context.obj
    if name is not None:
        need_own(name, "cache restore")
    store = open_store(session)
    if name is None:
        items = quarantined(store.root)
        if as_json:
            session.json("cache restore", {"quarantine": quarantine_json(items)})
        else:
            session.data(quarantine_lines(items, session.style))
            session.talk(f"{len(items)} set aside in {store.root.quarantine}")
        return YES
    entry = bring_back(store, find_quarantined(store.root, name))
    if as_json:
        session.json("cache restore", {"id": entry.short, "key": entry.key, "path": str(entry.path)})
    else:
        session.data([f"{entry.short} is back"])
    return YES
