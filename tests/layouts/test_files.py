"""Folders that change while they are looked at, and folders that may not be looked into."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.inspect.sizes import file_sizes
from graphkiln.cache.layouts.files import UNREAD, unread_in, walk


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
