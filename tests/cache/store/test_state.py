"""State is noted where possible and never believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.state import State, read_state, update_state


def test_fields_are_changed_one_by_one(root: CacheRoot, entry: Entry) -> None:
    assert entry.state == State(None, False, None)
    assert update_state(root, entry.path, label="prod")
    assert update_state(root, entry.path, pinned=True)
    assert entry.state == State("prod", True, None)
    assert entry.verify() == []
    assert list(root.staging.iterdir()) == []


def test_of_refusals_the_latest_are_kept_and_the_file_stays_one_that_can_be_read(
    root: CacheRoot, entry: Entry
) -> None:
    for number in range(300):
        refused = {**entry.state.refused, f"{number:064x}": 1}
        assert update_state(root, entry.path, label="prod", refused=refused)
    assert [*entry.state.refused] == [f"{number:064x}" for number in range(236, 300)]
    assert entry.state.label == "prod"
    assert (entry.path / "state.json").stat().st_size < 10_000


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"label": 3, "pinned": "yes"}', '{"pinned": 1}', "{" * 100_000]
)
def test_whatever_is_not_state_counts_as_never_written(entry: Entry, text: str) -> None:
    (entry.path / "state.json").write_text(text)
    assert entry.state == State()


def test_a_link_is_not_read(entry: Entry, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"label": "stolen"}')
    (entry.path / "state.json").symlink_to(tmp_path / "other.json")
    assert entry.state.label is None


def test_an_entry_that_is_gone_does_not_come_back(root: CacheRoot, entry: Entry, tmp_path: Path) -> None:
    entry.path.rename(tmp_path / "removed")
    assert not update_state(root, entry.path, label="x")
    assert not entry.path.exists()
    assert list(root.staging.iterdir()) == []
    assert read_state(entry.path) == State()
