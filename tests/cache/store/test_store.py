"""The store finds and names entries, sets them aside, and reads without leaving a trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import AmbiguousEntry, EntryDamaged, EntryNotFound, RootUnusable
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Broken, Store

Publish = Callable[..., Entry]
Make = Callable[..., Factors]
Snapshot = Callable[[Path], dict[str, tuple[int, int, int]]]


def test_an_empty_cache_is_read_without_being_created(store: Store, root: CacheRoot) -> None:
    assert store.find("0" * 64) == []
    assert store.entries() == []
    assert store.starts() == []
    assert not store.record_start({"outcome": "miss"})
    with pytest.raises(EntryNotFound):
        store.resolve("abc")
    assert not root.path.exists()


def test_reading_writes_nothing(
    store: Store, root: CacheRoot, entry: Entry, factors: Factors, snapshot: Snapshot
) -> None:
    before = snapshot(root.path)
    (found,) = store.find(factors.lookup)
    found.factors()
    found.verify()
    found.artifact_dir(found.manifest("0_0").artifacts[0])
    _ = found.total_bytes, found.state, found.build_digest
    store.resolve(entry.key[:4])
    store.entries()
    store.starts()
    assert snapshot(root.path) == before


def test_find_gives_the_entries_of_a_lookup_newest_first(
    store: Store, factors: Factors, other_factors: Make, publish: Publish
) -> None:
    published = [publish(store, other_factors(code={"version": n})) for n in range(3)]
    publish(store, other_factors(config={"dtype": "float64"}))
    found = store.find(factors.lookup)
    assert [entry.key for entry in found] == [entry.key for entry in reversed(published)]


def test_foreign_names_are_not_entries_and_broken_ones_are_listed(
    store: Store, root: CacheRoot, entry: Entry, factors: Factors, other_factors: Make, publish: Publish
) -> None:
    broken = publish(store, other_factors(code={"x": 1}))
    (broken.path / "entry.json").write_bytes(b"{}")
    renamed = "0" * 10
    shutil.copytree(entry.path, root.cache / renamed)
    for name in ("note.txt", "torch_aot_compile", "ABCDEF0123", "a" * 11):
        (root.cache / name).mkdir()
    first, *rest = store.entries()
    assert isinstance(first, Entry)
    assert first.key == entry.key
    assert {item.path.name for item in rest} == {broken.short, renamed}
    assert all(isinstance(item, Broken) and item.error.file == "entry.json" for item in rest)
    assert [found.key for found in store.find(factors.lookup)] == [entry.key]


def test_an_entry_is_named_by_key_prefix_label_and_path(
    store: Store, root: CacheRoot, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert update_state(root, entry.path, label="prod-7")
    monkeypatch.chdir(root.cache)
    refs = [entry.key, entry.short, entry.key[:3], "prod-7", str(entry.path), f"./{entry.short}"]
    assert [store.resolve(ref).key for ref in refs] == [entry.key] * len(refs)
    for ref in ("zzz", "0123456789abcdef" * 4, "/no/such/path", entry.key[:-1] + "g"):
        with pytest.raises(EntryNotFound):
            store.resolve(ref)


def test_a_prefix_or_label_of_two_entries_is_ambiguous(
    store: Store, root: CacheRoot, other_factors: Make, publish: Publish
) -> None:
    entries = [publish(store, other_factors(code={"version": n})) for n in range(17)]
    first = [entry.key[0] for entry in entries]
    twice = next(digit for digit in first if first.count(digit) > 1)
    with pytest.raises(AmbiguousEntry) as caught:
        store.resolve(twice)
    assert sorted(caught.value.matches) == sorted(entry.key for entry in entries if entry.key[0] == twice)
    for entry in entries[:2]:
        update_state(root, entry.path, label="same label")
    with pytest.raises(AmbiguousEntry):
        store.resolve("same label")


def test_naming_a_broken_entry_says_what_is_wrong_with_it(store: Store, entry: Entry) -> None:
    (entry.path / "entry.json").write_bytes(b"")
    for ref in (entry.short, entry.key, str(entry.path)):
        with pytest.raises(EntryDamaged):
            store.resolve(ref)


def test_a_root_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch_compile_cache").write_text("")
    with pytest.raises(RootUnusable):
        Store(CacheRoot(tmp_path)).entries()


class TestSetAside:
    def test_it_moves_the_whole_entry_and_writes_the_reason(
        self, store: Store, root: CacheRoot, entry: Entry
    ) -> None:
        folder = store.set_aside(entry, {"why": "crashed on its first call", "at": Path("/x")})
        assert folder is not None
        assert folder.parent == root.quarantine
        assert Entry(folder / entry.short).verify() == []
        record = json.loads((folder / "reason.json").read_text())
        assert record["reason"] == {"why": "crashed on its first call", "at": "/x"}
        assert store.entries() == []

    def test_a_broken_one_can_be_set_aside(self, store: Store, entry: Entry) -> None:
        (entry.path / "entry.json").unlink()
        (broken,) = store.entries()
        assert store.set_aside(broken, {"why": "broken"}) is not None
        assert store.entries() == []

    def test_twice_in_one_second_gives_two_folders(
        self, store: Store, root: CacheRoot, factors: Factors, publish: Publish
    ) -> None:
        for _ in range(3):
            assert store.set_aside(publish(store, factors), {}) is not None
        assert len(list(root.quarantine.iterdir())) == 3

    def test_a_new_entry_that_took_the_place_is_left_alone(
        self, store: Store, entry: Entry, factors: Factors, publish: Publish
    ) -> None:
        (entry.path / "factors.json").write_bytes(b"")
        fresh = publish(store, factors)
        assert store.set_aside(entry, {"why": "seen before it was replaced"}) is None
        assert Entry(fresh.path).verify() == []

    def test_a_second_look_that_finds_it_sound_leaves_it(self, store: Store, entry: Entry) -> None:
        assert store.set_aside(entry, {}, only_if_damaged=True) is None
        (entry.path / "factors.json").write_bytes(b"")
        assert store.set_aside(entry, {}, only_if_damaged=True) is not None

    def test_an_entry_of_another_place_is_refused(self, store: Store, entry: Entry, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="not an entry of this cache"):
            Store(CacheRoot(tmp_path / "other")).set_aside(entry, {})
        assert Entry(entry.path).verify() == []

    def test_what_is_gone_is_nothing_to_set_aside(self, store: Store, entry: Entry) -> None:
        shutil.rmtree(entry.path)
        assert store.set_aside(entry, {}) is None


def test_an_explicit_folder_is_a_store_of_its_own(tmp_path: Path, factors: Factors, publish: Publish) -> None:
    root = CacheRoot(tmp_path / "root")
    store = Store(root, tmp_path / "mine")
    entry = publish(store, factors)
    assert entry.path == tmp_path / "mine" / factors.short
    assert sorted(os.listdir(tmp_path / "mine")) == [".graphkiln", factors.short]
    assert store.record_start({"outcome": "hit"})
    assert Store(root, tmp_path / "mine").find(factors.lookup)[0].verify() == []
    assert Store(root).find(factors.lookup) == []
    assert not root.path.exists()


class TestReadOnly:
    """As a user without any right to write: the owner of nothing that could be changed."""

    @pytest.fixture
    def open_folder(self) -> Iterator[Path]:
        # pytest's own folders are closed to other users on the way.
        folder = Path(tempfile.mkdtemp(prefix="graphkiln-test-"))
        folder.chmod(0o755)
        yield folder
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)

    def freeze(self, folder: Path) -> None:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)

    def test_a_warm_root_serves_a_hit_and_stays_as_it_is(
        self,
        open_folder: Path,
        factors: Factors,
        publish: Publish,
        snapshot: Snapshot,
        child: Callable[..., subprocess.Popen[str]],
    ) -> None:
        root = CacheRoot(open_folder / "root")
        publish(Store(root), factors)
        self.freeze(root.path)
        before = snapshot(root.path)
        out, err = child("read", root.path, factors.lookup).communicate(timeout=60)
        assert out, err
        result: dict[str, Any] = json.loads(out)
        assert result == {
            "faults": [],
            "config": {"dtype": "float32"},
            "wiring": {"steps": [0, 1]},
            "recorded": False,
            "set_aside": None,
        }
        assert "could not be set aside" in err
        assert snapshot(root.path) == before

    def test_a_cold_root_is_a_named_error(
        self, open_folder: Path, child: Callable[..., subprocess.Popen[str]]
    ) -> None:
        open_folder.chmod(0o555)
        out, err = child("write", open_folder / "root", '{"a": 1}').communicate(timeout=60)
        assert err == ""
        result = json.loads(out)
        assert result["error"] == "RootUnusable"
        assert str(open_folder / "root") in result["text"]
        assert "permission denied" in result["text"]
