"""`cache pin`, `unpin`, `label`, `dir`, `size`: what people note about entries, and where and how much."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from graphkiln.cli.commands.asked import Json
from graphkiln.cli.commands.foreign import is_foreign, need_own
from graphkiln.cli.commands.opening import EntryName, open_store
from graphkiln.cli.errors import NOT_HERE, YES, UsageProblem
from graphkiln.cli.session import Session


def pin(context: typer.Context, entry: EntryName, as_json: Json = False) -> int:
    """Keeps an entry whatever prune is told."""
    return marked(context.obj, "cache pin", entry, "is pinned", as_json, pinned=True)


def unpin(context: typer.Context, entry: EntryName, as_json: Json = False) -> int:
    """Lets prune remove an entry again."""
    return marked(context.obj, "cache unpin", entry, "is not pinned", as_json, pinned=False)


def label(
    context: typer.Context,
    entry: EntryName,
    text: Annotated[
        str | None,
        typer.Argument(metavar="LABEL", help="A name for it; without one, no name.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """Gives an entry a name that works wherever an entry is asked for; prune keeps named entries."""
    need_own(entry, "cache label")
    if text is not None:
        check_label(context.obj, entry, text)
    says = f"is labelled {text}" if text else "has no label"
    return marked(context.obj, "cache label", entry, says, as_json, label=text or None)


def check_label(session: Session, entry: str, text: str) -> None:
    """Refuses a label that could be taken for something else, and one that another entry has."""
    import re

    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,99}", text) is None:
        raise UsageProblem(f"{text!r} is no label", "letters, digits and . _ : @ + -, at most 100")
    if is_foreign(text):
        raise UsageProblem(f"{text!r} reads as a place in the tree of another program", "take another word")
    if re.fullmatch(r"[0-9a-f]+", text):
        raise UsageProblem(f"{text!r} could be the beginning of a key", "add another letter")
    from graphkiln.cache.inspect.catalogue import find_row, scan

    catalogue = scan(open_store(session))
    own = find_row(catalogue, entry)
    others = [row.id for row in catalogue.rows if row.label == text and row.path != own.path]
    if others:
        raise UsageProblem(f"{others[0]} has the label {text}", f"graphkiln cache label {others[0]}")


def marked(session: Session, command: str, ref: str, says: str, as_json: bool, **changes: Any) -> int:
    """Changes the state of an entry and tells it; exits 4 where the cache cannot be written."""
    from graphkiln.cache.inspect.catalogue import find_row, scan
    from graphkiln.cache.store.state import update_state

    need_own(ref, command)
    store = open_store(session)
    row = find_row(scan(store), ref)
    if row.foreign == (".",):
        raise UsageProblem(f"{row.id} is no entry", f"look at {row.path}")
    if not update_state(store.root, row.path, **changes):
        session.talk(f"error: the state of {row.id} cannot be written in {store.root.path}")
        return NOT_HERE
    if as_json:
        session.json(command, {"id": row.id, "key": row.key, **changes})
    else:
        session.data([f"{row.id} {says}"])
    return YES


def directory(context: typer.Context, as_json: Json = False) -> int:
    """Prints the folder of the cache."""
    from graphkiln.cache.store.root import choose_root

    session: Session = context.obj
    choice = choose_root(session.cache_root)
    if as_json:
        exists = choice.path.is_dir()
        session.json("cache dir", {"path": str(choice.path), "chosen_by": choice.chosen_by, "exists": exists})
    else:
        session.data([str(choice.path)])
        session.talk(f"chosen by {choice.chosen_by}")
    return YES


def size(context: typer.Context, as_json: Json = False) -> int:
    """Prints how much the cache holds, and what of it is no entry."""
    from graphkiln.cache.inspect.catalogue import scan
    from graphkiln.cache.inspect.sizes import file_sizes
    from graphkiln.cli.show.numbers import bytes_text
    from graphkiln.cli.show.table import table

    session: Session = context.obj
    store = open_store(session)
    catalogue = scan(store)
    rows = [("entries", len(catalogue.rows), catalogue.size, catalogue.files)]
    for name in ("staging", "quarantine", "trash"):
        folder = getattr(store.root, name)
        sizes = file_sizes(folder)
        count = len({path.split("/")[0] for path in sizes})
        rows.append((name, count, sum(sizes.values()), len(sizes)))
    if as_json:
        session.json(
            "cache size",
            {"root": str(store.root.path)}
            | {name: {"count": count, "bytes": held, "files": files} for name, count, held, files in rows},
        )
        return YES
    cells = [(name, str(count), bytes_text(held), str(files)) for name, count, held, files in rows]
    session.data(table(("what", ">count", ">size", ">files"), cells, session.style))
    return YES
