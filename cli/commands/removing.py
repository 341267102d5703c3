"""How a plan of removal is shown, asked about and carried out: the same for every command that removes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from graphkiln.cli.commands.opening import agreed
from graphkiln.cli.errors import NO, NOT_HERE, YES
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from graphkiln.cache.inspect.prune import Plan
    from graphkiln.cache.inspect.removal import Removed


def carried_out(
    session: Session,
    command: str,
    plan: Plan,
    remove: Callable[[], Removed],
    *,
    places: tuple[Path, ...],
    yes: bool,
    as_json: bool,
    unknown: Mapping[str, str] | None = None,
    grace_s: float = 0.0,
) -> int:
    """Shows the plan, does it if somebody says yes, and tells what became of it; exits 1 where any stays.

    `places` are the folders that things are moved out of: where one cannot be written, `RootUnusable` comes
    before a word of what would be freed. Exits 4 where what was moved away cannot be deleted.
    """
    from graphkiln.cli.show.prune import plan_json, plan_lines, plan_text, removed_lines

    nothing = not plan.doomed and not plan.leftovers
    if yes and not nothing:
        need_writable(places)
    if not as_json:
        session.data(plan_lines(plan, unknown or {}, session.style))
        session.talk(plan_text(plan))
    done: Removed | None = None
    if not nothing and agreed(session, yes, "remove them?", ask=not as_json):
        need_writable(places)
        done = remove()
    if as_json:
        session.json(command, plan_json(plan, unknown or {}, done))
    elif done is not None:
        for line in removed_lines(done, grace_s):
            session.talk(line)
    if done is not None and done.left:
        return NOT_HERE
    return NO if done is not None and done.skipped else YES


def need_writable(places: tuple[Path, ...]) -> None:
    """Raises `RootUnusable` for the first folder that this user cannot move anything out of."""
    from graphkiln.cache.errors import RootUnusable

    for place in places:
        if place.exists() and not os.access(place, os.W_OK | os.X_OK):
            raise RootUnusable(place, "it cannot be written", "give this user write access to it")
