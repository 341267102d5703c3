"""What the cache commands share: the store of this run, its entries by name or filter, and a yes or no."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from graphkiln.cli.errors import UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphkiln.cache.store.store import Store

FILTER_HELP = "Such as 'size>1GB and unused>30d', model~llama, compiler.torch!=2.13.0; may be repeated."
ENTRY_HELP = "A key, the beginning of one, a label, a path, or LAYOUT:DIR#ID."
Filters = Annotated[
    list[str] | None, typer.Option("--filter", metavar="EXPR", help=FILTER_HELP, show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Grace = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long removed entries stay in the trash; GRAPHKILN_TRASH_GRACE, else 1h.",
        show_default=False,
    ),
]
EntryName = Annotated[
    str,
    typer.Argument(
        metavar="ENTRY", help="A key, the beginning of one, a label, or a path.", show_default=False
    ),
]


def open_store(session: Session) -> Store:
    """Returns the store at the root of this run, or in a folder given as `cache_dir`; creates nothing."""
    from graphkiln.cache.store.root import CacheRoot, resolve_root
    from graphkiln.cache.store.store import Store

    root = CacheRoot(resolve_root(session.cache_root))
    # A folder that a deployment names itself keeps its entries in itself, and the rest in this one.
    inside = CacheRoot.of_folder(root.path)
    return Store(root, root.path if inside.path.is_dir() and not root.cache.exists() else None)


def grace_of(text: str | None) -> float:
    """Returns the grace period in seconds; a bare number is one of seconds, as in the variable."""
    from graphkiln.cache.factors.env import read

    if text is None:
        return float(read("GRAPHKILN_TRASH_GRACE"))
    return quantity("--grace", f"{text}s" if text.isdecimal() else text, duration) or 0.0


def quantity(option: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    """Returns the parsed value of an option that may be absent; a bad one is bad usage."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageProblem(f"{option} takes {error}, not {text!r}") from None


def duration(text: str) -> float:
    from graphkiln.cache.inspect.quantities import parse_duration

    return parse_duration(text)


def size(text: str) -> int:
    from graphkiln.cache.inspect.quantities import parse_size

    return parse_size(text)


def agreed(session: Session, yes: bool, question: str, *, ask: bool = True) -> bool:
    """Returns whether to go on: --yes says so, a terminal is asked, anything else means no."""
    if yes:
        return True
    if ask and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    session.talk("nothing was done: this is the plan, --yes carries it out")
    return False
