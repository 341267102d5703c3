"""The ledger takes a line a start, whoever else writes, and never stops a start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from graphkiln.cache.store.ledger import append_start, read_starts
from graphkiln.cache.store.root import CacheRoot


@pytest.fixture
def made(root: CacheRoot) -> CacheRoot:
    root.ensure()
    return root


def test_lines_come_back_in_order_with_their_time(made: CacheRoot) -> None:
    for n in range(3):
        assert append_start(made, {"outcome": "hit", "n": n})
    starts = read_starts(made.ledger)
    assert [start["n"] for start in starts] == [0, 1, 2]
    assert all(start["at"].endswith("+00:00") for start in starts)


def test_the_oldest_half_goes_at_the_cap_and_no_line_is_cut(made: CacheRoot) -> None:
    for n in range(200):
        assert append_start(made, {"n": n}, cap_bytes=2000)
    assert made.ledger.stat().st_size <= 2000
    numbers = [start["n"] for start in read_starts(made.ledger)]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) > 10
    assert list(made.staging.iterdir()) == []


def test_a_torn_line_costs_only_itself(made: CacheRoot) -> None:
    append_start(made, {"n": 1})
    with made.ledger.open("ab") as stream:
        stream.write(b'{"n": 2, "tor')
    append_start(made, {"n": 3})
    assert [start["n"] for start in read_starts(made.ledger)] == [1, 3]


@pytest.mark.parametrize("junk", [b"\xff\xfe\n", b"[1]\n", b"null\n", b"[" * 100_000 + b"\n", b"\n\n"])
def test_lines_that_are_no_starts_are_left_out(made: CacheRoot, junk: bytes) -> None:
    made.ledger.write_bytes(junk)
    append_start(made, {"n": 1})
    assert [start["n"] for start in read_starts(made.ledger)] == [1]


def test_what_cannot_be_written_is_false_and_no_error(made: CacheRoot) -> None:
    assert not append_start(made, {"n": object()})
    assert not append_start(made, {"text": "x" * 100_000})
    made.ledger.mkdir()
    assert not append_start(made, {"n": 1})
    assert read_starts(made.ledger) == []


@pytest.mark.parametrize("cap", [1 << 20, 2000], ids=["growing", "dropping"])
def test_writers_at_the_same_time_lose_nothing(
    made: CacheRoot, child: Callable[..., subprocess.Popen[str]], cap: int
) -> None:
    processes = [child("notes", made.path, 60, cap) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    noted = {process.pid: json.loads(process.communicate(timeout=60)[0]) for process in processes}
    starts = read_starts(made.ledger)
    assert len(made.ledger.read_text().splitlines()) == len(starts)
    for pid, numbers in noted.items():
        kept = [start["n"] for start in starts if start["pid"] == pid]
        # Only the oldest may be gone: what is left of each writer is the end of what it noted.
        assert kept == numbers[len(numbers) - len(kept) :]
        assert cap == 2000 or kept == numbers
