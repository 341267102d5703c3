"""What is removed goes to the trash by one rename, and away after a grace period."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from graphkiln.cache.errors import RootUnusable
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.trash import discard, discarded, empty_trash


def test_a_discarded_entry_is_gone_at_once_and_deleted_after_the_grace(store: Store, entry: Entry) -> None:
    size, files = entry.total_bytes, sum(1 for path in entry.path.rglob("*") if path.is_file())
    place = store.discard(entry)
    assert place is not None
    assert place.parent == store.root.trash
    assert store.entries() == []
    now = datetime.now(UTC)
    assert empty_trash(store.root, 60, now) == (0, 0)
    assert [item.path for item in discarded(store.root)] == [place]
    assert empty_trash(store.root, 60, now + timedelta(seconds=61)) == (size, files)
    assert not place.exists()


def test_a_reader_keeps_what_it_has_open_and_mapped(store: Store, entry: Entry) -> None:
    [path] = entry.path.glob("artifacts/*/kernel.so")
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        store.discard(entry)
        empty_trash(store.root, 0)
        assert not path.exists()
        assert mapped[:12] == b"machine code"
        assert stream.read(12) == b"machine code"


def test_names_that_are_not_ours_stay_in_the_trash(root: CacheRoot) -> None:
    names = ("notes", "0123456789", "0123456789-20260101T000000Z", "x-20269999T000000Z-00000000")
    for name in names:
        (root.trash / name).mkdir(parents=True)
    assert discarded(root) == []
    assert empty_trash(root, 0) == (0, 0)
    assert sorted(path.name for path in root.trash.iterdir()) == sorted(names)


@pytest.mark.parametrize("state", [{"pinned": True}, {"label": "prod"}])
def test_what_somebody_kept_meanwhile_is_spared(store: Store, entry: Entry, state: dict[str, object]) -> None:
    update_state(store.root, entry.path, **state)
    assert store.discard(entry) is None
    assert entry.path.exists()
    assert store.discard(entry, spare_kept=False) is not None


def test_what_somebody_replaced_meanwhile_is_spared(
    store: Store, entry: Entry, factors: Factors, publish: Callable[..., Entry]
) -> None:
    store.set_aside(entry, {"reason": "a try"})
    publish(store, factors)
    assert store.discard(entry) is None
    assert len(store.entries()) == 1


def test_an_entry_of_another_cache_is_a_mistake_of_the_caller(
    store: Store, entry: Entry, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="not an entry of this cache"):
        Store(CacheRoot(tmp_path / "other")).discard(entry)


def test_a_trash_that_cannot_be_made_is_a_typed_error(store: Store, entry: Entry) -> None:
    store.root.trash.write_text("a file")
    with pytest.raises(RootUnusable):
        discard(store.root, entry.path)
    assert entry.path.exists()


def test_a_compile_empties_the_trash(store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    store.discard(entry)
    with store.draft("0" * 64):
        assert len(discarded(store.root)) == 1
    monkeypatch.setenv("GRAPHKILN_TRASH_GRACE", "0")
    with store.draft("0" * 64):
        assert discarded(store.root) == []
