"""Which entries this machine cannot hit any more because of a factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphkiln.cli.errors import UsageProblem

if TYPE_CHECKING:
    from graphkiln.cache.inspect.catalogue import Row


def find_stale(rows: Sequence[Row], factors: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns why an entry is stale, and why it cannot be told, each by the entry's id.

    What needs torch, or the model's modules, is asked of a child process.
    """
    stale: dict[str, str] = {}
    unknown: dict[str, str] = {}
    sound = [row for row in rows if row.key]
    if "env" in factors:
        from graphkiln.cache.factors.canonical import digest
        from graphkiln.cache.factors.difference import differences
        from graphkiln.cache.factors.env import env_factor

        now = env_factor()
        hashed = digest(now)
        for row in sound:
            if row.hashes["env"] != hashed:
                then = row.factors()
                found = differences("env", then["env"], now) if then is not None else []
                stale[row.id] = f"env: {found[0].name} was {found[0].then!r}" if found else "env differs"
    asked = [factor for factor in factors if factor != "env"]
    if asked and sound:
        for name, answer in ask_child(sound, asked).items():
            if answer["stale"]:
                stale.setdefault(name, str(answer["why"]))
            elif answer["why"]:
                unknown[name] = str(answer["why"])
    return stale, {name: why for name, why in unknown.items() if name not in stale}


def ask_child(rows: Sequence[Row], factors: Sequence[str]) -> dict[str, dict[str, Any]]:
    import json
    import subprocess
    import sys

    asked = json.dumps({"factors": list(factors), "entries": {row.id: str(row.path) for row in rows}})
    command = [sys.executable, "-m", "graphkiln.core.stale"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True)
    try:
        answer: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise UsageProblem(f"what is stale cannot be found out: {last[0]}") from None
    return answer
