"""Unsound entries are set aside alone, with the reason, and can be brought back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.errors import EntryNotFound, RestoreRefused
from graphkiln.cache.inspect.repair import find_quarantined, quarantined, repair, restore
from graphkiln.cache.inspect.verify import verify_entries
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.store import Store
from tests.cache.inspect.made import cache_at, make_entry, note_use

Snapshot = Callable[[Path], object]
FILES = (
    "entry.json", "factors.json", "source/*.py", "artifacts/*/kernels/k.so", "artifacts/*/wrapper.py",
    "rank_0_0/manifest.json", "rank_0_0/backbone/graph.py", "rank_0_0/backbone/wiring.json",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return cache_at(tmp_path / "root")


def repaired(store: Store, entry: Entry) -> list[Path | None]:
    [verdict] = verify_entries([entry.path])
    return [moved.to for moved in repair(store, verdict)]


@pytest.mark.parametrize("pattern", FILES)
def test_one_damaged_entry_is_set_aside_and_no_other_is_touched(
    store: Store, snapshot: Snapshot, pattern: str
) -> None:
    others = [make_entry(store, "one"), make_entry(store, "three")]
    entry = make_entry(store, "two")
    before = [snapshot(other.path) for other in others]
    [path] = entry.path.glob(pattern)
    path.write_bytes(b"")
    [place] = repaired(store, entry)
    assert place is not None
    assert not entry.path.exists()
    assert [snapshot(other.path) for other in others] == before
    reason = json.loads((place / "reason.json").read_bytes())
    assert reason["moved"] == entry.short
    assert [fault["file"] for fault in reason["reason"]["faults"]] == [str(path.relative_to(entry.path))]
    [item] = quarantined(store.root)
    assert item.is_entry
    assert item.why.startswith(str(path.relative_to(entry.path)))


def test_a_sound_a_partial_and_a_path_holding_entry_stay(store: Store, snapshot: Snapshot) -> None:
    entries = [
        make_entry(store, "one"),
        make_entry(store, "two", header={"ranks_expected": ["0_0", "1_0"]}),
        make_entry(store, "three", graph="# /home/ci/model.py\n"),
    ]
    before = snapshot(store.root.path)
    assert [place for entry in entries for place in repaired(store, entry)] == []
    assert snapshot(store.root.path) == before


@pytest.mark.parametrize("name", ["rank_0_0/core.1234", "state.json", "reports/check.json"])
def test_a_file_that_no_load_needs_is_moved_alone(store: Store, name: str) -> None:
    entry = make_entry(store)
    (entry.path / name).parent.mkdir(exist_ok=True)
    (entry.path / name).write_bytes(b"not json")
    [place] = repaired(store, entry)
    assert place is not None
    assert (place / Path(name).name).read_bytes() == b"not json"
    assert verify_entries([entry.path])[0].status == "sound"
    [item] = quarantined(store.root)
    assert not item.is_entry


def test_an_entry_that_is_a_link_is_moved_as_a_link(store: Store, tmp_path: Path) -> None:
    entry = make_entry(store)
    os.rename(entry.path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", entry.path)
    [place] = repaired(store, entry)
    assert place is not None
    assert (place / entry.short).is_symlink()
    assert (tmp_path / "elsewhere" / "entry.json").exists()


@pytest.mark.parametrize("name", ["factors.json", "entry.json"])
def test_an_entry_replaced_after_it_was_looked_at_stays(store: Store, name: str) -> None:
    entry = make_entry(store)
    (entry.path / name).write_bytes(b"")
    [verdict] = verify_entries([entry.path])
    os.rename(entry.path, store.root.path / "away")
    replaced = make_entry(store)
    [moved] = repair(store, verdict)
    assert (moved.to, moved.why) == (None, "it could not be moved, or was replaced meanwhile")
    assert replaced.path.exists()


def test_what_was_set_aside_comes_back_whole(store: Store, snapshot: Snapshot) -> None:
    entry = make_entry(store)
    note_use(entry, 3, label="prod")
    before = snapshot(entry.path)
    assert store.set_aside(entry, {"reason": "a mistake"}) is not None
    assert store.find(entry.lookup) == []
    item = find_quarantined(store.root, entry.short)
    assert item.why == "a mistake"
    assert restore(store, item).key == entry.key
    assert snapshot(entry.path) == before
    assert [found.key for found in store.find(entry.lookup)] == [entry.key]
    assert quarantined(store.root) == []


def test_what_is_still_damaged_does_not_come_back(store: Store) -> None:
    entry = make_entry(store)
    (entry.path / "rank_0_0" / "manifest.json").write_bytes(b"")
    repaired(store, entry)
    with pytest.raises(RestoreRefused, match=r"still damaged: rank_0_0/manifest\.json: unreadable"):
        restore(store, find_quarantined(store.root, entry.key))
    assert not entry.path.exists()
    assert len(quarantined(store.root)) == 1


def test_nothing_comes_back_over_an_entry(store: Store) -> None:
    entry = make_entry(store)
    store.set_aside(entry, {"reason": "a try"})
    make_entry(store)
    with pytest.raises(RestoreRefused, match="is there again"):
        restore(store, find_quarantined(store.root, entry.short))


def test_names_in_quarantine_that_are_not_ours_are_left_out(store: Store) -> None:
    entry = make_entry(store)
    place = store.set_aside(entry, {"reason": "a try"})
    assert place is not None
    (store.root.quarantine / "notes").mkdir()
    (store.root.quarantine / "0123456789-file").write_text("")
    (place / "reason.json").write_bytes(b"{")
    [item] = quarantined(store.root)
    # The reason was lost; what lies there is found all the same.
    assert (item.moved, item.why) == (entry.short, "")
    for ref in ("", "notes", "ffff"):
        with pytest.raises(EntryNotFound):
            find_quarantined(store.root, ref)
    assert restore(store, item).key == entry.key
