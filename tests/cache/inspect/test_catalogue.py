"""One scan tells of every entry, whatever is wrong with it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from graphkiln.cache.errors import AmbiguousEntry, EntryNotFound
from graphkiln.cache.inspect.catalogue import find_row, scan
from graphkiln.cache.store.state import update_state
from tests.cache.inspect.made import cache_at, make_entry, note_use, reheaded


def test_a_row_says_what_the_header_the_state_and_the_ledger_say(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    entry = make_entry(store, model="llama", dtype="bfloat16", target="cpu:avx512")
    update_state(store.root, entry.path, label="prod")
    for outcome in ("compiled", "hit", "hit", "miss"):
        store.record_start({"key": entry.key, "outcome": outcome})
    [row] = scan(store).rows
    assert (row.id, row.key, row.lookup) == (entry.short, entry.key, entry.lookup)
    assert (row.model, row.dtype, row.target, row.label) == ("llama", "bfloat16", "cpu:avx512", "prod")
    assert (row.size, row.files) == (
        entry.total_bytes,
        sum(1 for path in entry.path.rglob("*") if path.is_file()),
    )
    assert (row.hits, row.statuses, row.status, row.fault) == (2, ("sound",), "sound", "")
    assert row.last_used == store.starts()[2]["at"]
    factors = row.factors()
    assert factors is not None
    assert factors["compiler"]["torch"] == "2.13.0"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("entry.json", "entry.json: unreadable (empty)"),
        ("rank_0_0/manifest.json", "rank_0_0/manifest.json: unreadable (empty)"),
        ("factors.json", "factors.json: size (0 bytes instead of "),
        ("rank_0_0/backbone/wiring.json", "rank_0_0/backbone/wiring.json: size (0 bytes instead of "),
    ],
)
def test_an_empty_file_makes_an_entry_broken_and_no_scan_fail(tmp_path: Path, name: str, fault: str) -> None:
    store = cache_at(tmp_path)
    entry, other = make_entry(store, "one"), make_entry(store, "two", dtype="float16")
    (entry.path / name).write_bytes(b"")
    rows = {row.id: row for row in scan(store).rows}
    assert rows[other.short].status == "sound"
    assert rows[entry.short].status == "broken"
    assert rows[entry.short].fault.startswith(fault)
    assert rows[entry.short].size > 0


def test_a_rank_that_is_not_there_makes_an_entry_partial(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    make_entry(store, header={"ranks_expected": ["0_0", "1_0"]})
    [row] = scan(store).rows
    assert (row.status, row.fault) == ("partial", "no rank 1_0")


def test_superseded_is_the_older_one_of_the_same_env_config_and_target(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    old_torch = make_entry(store, torch="2.12.0", age_days=9)
    old_code = make_entry(store, "before", age_days=5)
    newest = make_entry(store, "after", age_days=1)
    make_entry(store, "other", dtype="float16", age_days=7)
    make_entry(store, "other", target="cpu:avx512", torch="2.12.1", age_days=7)
    make_entry(store, "other", env=True, age_days=7)
    rows = scan(store).rows
    assert {row.id for row in rows if row.superseded} == {old_torch.short, old_code.short}

    # One that cannot serve supersedes nothing.
    (newest.path / "factors.json").unlink()
    assert {row.id for row in scan(store).rows if row.superseded} == {old_torch.short}


def test_names_that_are_no_entries_are_told_apart(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    entry = make_entry(store)
    (store.root.cache / "README").write_text("mine")
    theirs = store.root.cache / "0123456789" / "rank_0_0" / "backbone"
    theirs.mkdir(parents=True)
    (theirs / "computation_graph.py").write_text("")
    (store.root.cache / "aaaaaaaaaa").mkdir()
    (entry.path / "notes.txt").write_text("mine")
    catalogue = scan(store)
    rows = {row.id: row for row in catalogue.rows}
    assert catalogue.foreign == ("README",)
    assert rows[entry.short].foreign == ("notes.txt",)
    assert rows["0123456789"].foreign == ("rank_0_0/backbone/computation_graph.py",)
    assert rows["aaaaaaaaaa"].foreign == (".",)


def test_a_link_in_the_place_of_an_entry_is_not_followed(tmp_path: Path) -> None:
    store = cache_at(tmp_path / "root")
    entry = make_entry(store)
    os.rename(entry.path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", entry.path)
    [row] = scan(store).rows
    assert (row.status, row.size, row.foreign) == ("broken", 0, (".",))


def test_headers_of_any_content_give_a_row(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    entry = make_entry(store, header={"model": ["x"], "dtype": None, "target": "cpu"})
    reheaded(entry, created="the other day")
    note_use(entry, 1, label=7)
    [row] = scan(store).rows
    assert (row.model, row.dtype, row.target, row.label, row.created) == (
        "['x']", "None", "", None, "the other day"
    )  # fmt: skip


def test_an_entry_is_found_by_key_label_and_path_broken_ones_too(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    entry, broken = make_entry(store, "one"), make_entry(store, "two")
    update_state(store.root, entry.path, label="prod")
    (broken.path / "entry.json").write_bytes(b"")
    catalogue = scan(store)
    for ref in (entry.key, entry.short, entry.key[:5], "prod", str(entry.path)):
        assert find_row(catalogue, ref).id == entry.short
    assert find_row(catalogue, broken.short).status == "broken"
    assert find_row(catalogue, broken.key).status == "broken"
    for ref in ("", "nothing", str(tmp_path)):
        with pytest.raises(EntryNotFound):
            find_row(catalogue, ref)
    keys = sorted(make_entry(store, str(number)).key for number in range(17))
    shared = next(one[0] for one, other in itertools.pairwise(keys) if one[0] == other[0])
    with pytest.raises(AmbiguousEntry):
        find_row(scan(store), shared)


def test_a_cache_that_is_not_there_is_empty_and_stays_so(tmp_path: Path) -> None:
    catalogue = scan(cache_at(tmp_path / "none"))
    assert (catalogue.rows, catalogue.foreign, catalogue.size, catalogue.files) == ((), (), 0, 0)
    assert not (tmp_path / "none").exists()
