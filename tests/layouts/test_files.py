"""Folders that change while they are looked at, or may not be looked into, and files of no known time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.inspect.sizes import file_sizes
from graphkiln.cache.layouts import files
from graphkiln.cache.layouts.files import UNREAD, Stat, iso_time, unread_in, walk
from graphkiln.cache.layouts.readers import TreeRef, open_tree
from tests.layouts.trees import Vllm, inductor_files, triton_kernel


@pytest.mark.parametrize("look", [walk, file_sizes])
def test_a_file_that_goes_away_meanwhile_hides_no_other(
    look: Callable[[Path], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(name)
    listed, gone = os.scandir, []

    @contextmanager
    def scandir(place: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with listed(place) as items:
            entries = list(items)
        gone.append(entries[0].name)
        os.unlink(entries[0].path)
        yield iter(entries)

    monkeypatch.setattr(os, "scandir", scandir)
    assert set(look(tmp_path)) == {"one", "two", "three"} - set(gone)
    assert len(gone) == 1


def test_a_folder_that_cannot_be_listed_is_told_and_one_that_is_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "file").write_text("text")
    listed = os.scandir

    def scandir(place: str) -> Any:
        if place.endswith("closed"):
            raise PermissionError(13, "Permission denied", place)
        return listed(place)

    monkeypatch.setattr(os, "scandir", scandir)
    found = walk(tmp_path)
    assert {name: stat.kind for name, stat in found.items()} == {"closed": UNREAD, "file": "file"}
    assert unread_in(found) == "closed"
    assert {name: stat.kind for name, stat in walk(tmp_path / "closed").items()} == {".": UNREAD}
    assert walk(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("moment", [2.0**40, -(2.0**40), 2.0**80])
def test_a_time_that_no_calendar_has_is_not_known(
    moment: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (iso_time(moment), iso_time(None), iso_time(0.0)) == ("", "", "1970-01-01T00:00:00+00:00")
    tree = Vllm(tmp_path / "vllm", aot=False, mega=False).write()
    Vllm(tmp_path / "vllm", aot=False, mega=False, source="# newer\n", at=tree.at + 1000).write()
    inductor_files(tmp_path / "inductor")
    triton_kernel(tmp_path / "triton")
    plain = files._stat_of

    def odd(path: str) -> Stat | None:
        seen = plain(path)
        newer = "/vllm/" in path and f"/{tree.short}/" not in path
        return seen if seen is None or newer else replace(seen, mtime=moment)

    monkeypatch.setattr(files, "_stat_of", odd)
    for layout in ("inductor", "triton"):
        assert {row.created for row in open_tree(TreeRef(layout, tmp_path / layout)).rows} == {""}
    rows = {row.id: row for row in open_tree(TreeRef("vllm", tmp_path / "vllm")).rows}
    assert (rows[tree.short].created, rows[tree.short].superseded) == ("", False)
    assert len(rows) == 2
