"""Trees of other programs, under the same commands: `--layout vllm`, and ENTRY as `vllm:PATH#ID`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.errors import NO, UNKNOWN, YES, UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphkiln.cache.inspect.catalogue import Catalogue
    from graphkiln.cache.inspect.diff import EntryDiff
    from graphkiln.cache.layouts.found import ForeignRow, ForeignVerdict
    from graphkiln.cache.layouts.readers import TreeRef
    from graphkiln.cli.show.entry import Shown

# Known without importing any reader: a word with a colon may be the label of one of our own entries.
LAYOUTS = ("vllm", "inductor", "triton")
Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="LAYOUT[:DIR]",
        help=f"Another program's cache: {', '.join(LAYOUTS)}; DIR where it does not lie as usual.",
        show_default=False,
    ),
]


def is_foreign(entry: str | None) -> bool:
    """Returns whether an ENTRY leads into the tree of another program."""
    return entry is not None and entry.partition(":")[0] in LAYOUTS and ":" in entry


def need_own(entry: str, does: str) -> None:
    """Refuses an ENTRY in the tree of another program for a command that writes a note or moves it back."""
    if is_foreign(entry):
        raise UsageProblem(f"{does} is for entries of graphkiln", "other trees are only read")


def tree_of(session: Session, layout: str) -> TreeRef:
    """Returns the tree that --layout names; without a DIR --cache-root says where it lies, if it is given."""
    from dataclasses import replace

    from graphkiln.cache.layouts.readers import parse_ref

    ref = parse_ref(layout if ":" in layout else f"{layout}:")
    if ref is None:
        name = layout.partition(":")[0]
        near = difflib.get_close_matches(name, LAYOUTS, n=1)
        meant = f"; did you mean {near[0]}" if near else ""
        raise UsageProblem(f"no layout {name!r}{meant}", f"good ones are {', '.join(LAYOUTS)}")
    if ref.id:
        raise UsageProblem(f"--layout names a whole tree, not {ref.id}", "name one entry as ENTRY")
    return replace(ref, path=session.cache_root) if ref.path is None and session.cache_root else ref


def foreign_catalogue(session: Session, layout: str) -> Catalogue:
    """Returns the entries of the tree that --layout names."""
    from graphkiln.cache.layouts.readers import open_tree

    return open_tree(tree_of(session, layout))


def foreign_entry(entry: str, *, named: bool = False) -> ForeignRow:
    """Returns the entry that `layout:path#id` names; where `named`, a tree with one entry is not enough."""
    from graphkiln.cache.layouts.readers import find_entry, parse_ref

    ref = parse_ref(entry)
    assert ref is not None
    if named and ref.is_whole_tree:
        raise UsageProblem(
            f"{entry} names a whole tree", f"say which: {entry}#ID; {ref.listing} lists the ids"
        )
    return find_entry(ref)


def inspect_foreign(session: Session, entry: str, shown: Shown, *, as_json: bool) -> int:
    """Shows one entry of a foreign tree, every check on it made; exits 1 where anything is wrong."""
    from graphkiln.cli.show.foreign import account_json, account_lines

    row = foreign_entry(entry)
    found, verdict = row.reader.account(row), row.reader.verify(row)
    if as_json:
        session.json("cache inspect", account_json(found, verdict))
    else:
        session.data(account_lines(found, verdict, session.style, shown))
    return status_of([verdict])


def diff_of_foreign(a: str, b: str, factor: str | None) -> EntryDiff:
    """Returns how two entries of foreign trees differ; both must be of one layout."""
    from graphkiln.cache.layouts.diff import diff_foreign

    layouts = {entry.partition(":")[0] if is_foreign(entry) else "graphkiln" for entry in (a, b)}
    if len(layouts) > 1:
        names = " and ".join(sorted(layouts))
        raise UsageProblem(f"entries of {names} cannot be compared", "both must be of one layout")
    one, other = foreign_entry(a), foreign_entry(b)
    return diff_foreign(one.reader.account(one), other.reader.account(other), factor)


def verify_foreign(
    session: Session, entry: str | None, layout: str | None, filters: Sequence[str], *, as_json: bool
) -> int:
    """Checks entries of a foreign tree, and says what its program would do with each fault."""
    from graphkiln.cache.inspect.filters import select
    from graphkiln.cache.layouts.readers import chosen_rows, open_tree, parse_ref
    from graphkiln.cli.show.foreign import faults_lines
    from graphkiln.cli.show.verify import verdicts_json, verdicts_text

    ref = parse_ref(entry) if entry is not None else tree_of(session, layout or "")
    assert ref is not None
    rows = select(chosen_rows(ref), filters)
    if not rows and entry is not None and not filters:
        foreign_entry(entry)
    verdicts = [row.reader.verify(row) for row in rows]
    if as_json:
        notes = {verdict.id: list(verdict.notes) for verdict in verdicts}
        session.json("cache verify", verdicts_json(verdicts, (), (), {}) | {"notes": notes})
    else:
        session.data(faults_lines(verdicts, session.style))
        session.talk(f"{verdicts_text(verdicts)} in {open_tree(ref).root}")
    return status_of(verdicts)


def status_of(verdicts: Sequence[ForeignVerdict]) -> int:
    """Returns 0 where nothing is wrong, 3 where only a version is not known, else 1.

    What was overwritten by a newer entry is litter, and nothing is wrong with it.
    """
    wrong = [verdict for verdict in verdicts if verdict.faults or verdict.missing_ranks]
    if all(verdict.status == "unknown" for verdict in wrong):
        return UNKNOWN if wrong else YES
    return NO
