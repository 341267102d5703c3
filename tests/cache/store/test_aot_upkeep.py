"""AOT files while they are written and read: sweeps beside, other things in their place, short reads."""

from __future__ import annotations

import errno
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import EntryDamaged, RootUnusable
from graphkiln.cache.store import halves
from graphkiln.cache.store.aot import AotFile
from graphkiln.cache.store.aot_build import aot_bytes
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import write_new
from graphkiln.cache.store.halves import aot_name
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.sweep import remove_dead_drafts
from tests.cache.store.test_aot import opened, publish_whole


@pytest.fixture
def entry(store: Store, other_factors: Callable[..., Any]) -> Entry:
    return publish_whole(store, other_factors)


def test_no_sweep_takes_what_is_being_written(
    store: Store, entry: Entry, root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying: Path = root.cache / aot_name(entry.key, "0_0")
    sound = lying.read_bytes()
    lying.write_bytes(b"")

    def swept_first(path: Path, data: bytes) -> Any:
        remove_dead_drafts(root)
        return write_new(path, data)

    monkeypatch.setattr(halves, "write_new", swept_first)
    assert store.renew_aot(entry, "0_0")
    assert lying.read_bytes() == sound
    assert list(root.staging.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file"])
def test_whatever_lies_where_the_file_belongs_leaves_nothing_behind(
    store: Store, entry: Entry, root: Any, tmp_path: Path, kind: str
) -> None:
    lying: Path = root.cache / aot_name(entry.key, "0_0")
    sound, elsewhere = lying.read_bytes(), tmp_path / "elsewhere"
    lying.parent.rename(elsewhere)
    if kind == "link":
        lying.parent.symlink_to(elsewhere)
    else:
        lying.parent.write_bytes(b"a file")
    assert store.renew_aot(entry, "0_0")
    assert lying.read_bytes() == (elsewhere / "model").read_bytes() == sound
    assert list(root.staging.iterdir()) == []


class Halting(BytesIO):
    """A file whose reads end early, as unbuffered ones do after some 2 GiB."""

    most = 1 << 30

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self.most if size is None or size < 0 else min(size, self.most))


def test_a_section_is_read_to_its_end(entry: Entry) -> None:
    data = aot_bytes(entry, "0_0")
    stream = Halting(data)
    file = AotFile(stream, len(data), "test")
    stream.most = 7
    assert list(file.faults()) == []
    assert file.section("code.json") == opened(data).section("code.json")


def test_a_damaged_file_is_told_and_another_engines_is_not(store: Store, entry: Entry, root: Any) -> None:
    lying: Path = root.cache / aot_name(entry.key, "0_0")
    sound = lying.read_bytes()
    foreign: Path = root.cache / aot_name("0" * 64, "0_0")
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"a pickle of another engine")
    for damaged, fault in ((sound[:200] + b"~" + sound[201:], "digest"), (b"", "unreadable")):
        lying.write_bytes(damaged)
        (found,) = store.find_aot(entry.lookup, "0_0")
        assert isinstance(found, EntryDamaged)
        assert (found.entry, found.fault) == (entry.short, fault)
    assert store.find_aot("1" * 64, "0_0") == []


def test_too_many_open_files_is_no_missing_file(
    store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(halves, "open_inside", full)
    with pytest.raises(RootUnusable, match="too many open files"):
        store.find_aot(entry.lookup, "0_0")
