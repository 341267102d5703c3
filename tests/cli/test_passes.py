"""What `precompile` and `cache inspect` show of passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.cli.show.passes import pass_lines
from graphkiln.cli.show.start import start_json, start_lines
from graphkiln.cli.show.terminal import Style
from tests.cli.conftest import Run
from tests.cli.test_start import COMPILED

PIECES: list[dict[str, Any]] = [
    {
        "piece": number,
        "tokens": [1, 2048],
        "passes": [
            {"name": "eliminate_noops", "seconds": 0.002, "matches": number},
            {"name": "mine:Pass", "seconds": 0.0004, "matches": None if number == 1 else 5},
        ],
    }
    for number in range(3)
]
TABLE = [
    "pass             changed   ms  piece by piece",
    "eliminate_noops        3  6.0  0 1 2",
    "mine:Pass                 1.2  5 ? 5",
]


def test_each_pass_is_a_row_with_its_sum_and_each_piece() -> None:
    assert pass_lines(PIECES, Style()) == TABLE
    assert pass_lines([], Style()) == []


def test_of_many_pieces_the_first_are_shown() -> None:
    many = [{**PIECES[0], "passes": PIECES[0]["passes"][:1]}] * 15
    assert pass_lines(many, Style())[1].endswith("  0 0 0 0 0 0 0 0 0 0 0 0 and 3 more")


def test_a_start_shows_its_passes_in_text_and_json() -> None:
    report = replace(COMPILED, passes=tuple(PIECES))
    lines = start_lines(report, "preset:llama", Style())
    assert set(TABLE) <= set(lines)
    assert start_json(report, "preset:llama")["passes"] == PIECES


def test_an_entry_shows_the_passes_of_its_ranks(run: Callable[..., Run], tmp_path: Path) -> None:
    factors = Factors(env={}, config={}, code={}, compiler={})
    with Store(CacheRoot(tmp_path)).draft(factors.key) as draft:
        artifact = draft.add_artifact({"kernel.so": b"\x7fELF"})
        draft.add_part("0_0", "backbone", "", {"steps": []}, [artifact])
        draft.set_rank("0_0", {"passes": {"backbone": PIECES}}, {})
        entry = draft.publish({"model": "m", "checked": True}, factors)
    done = run("cache", "inspect", entry.short, "--cache-root", str(tmp_path))
    assert done.status == 0
    assert set(TABLE) <= set(done.out.splitlines())
