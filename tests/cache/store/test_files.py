"""Files of an entry are read inside the entry only, never through a link."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from graphkiln.cache.store.files import (
    copy_new,
    measure_inside,
    open_inside,
    read_inside,
    relative_parts,
    tree_files,
)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "..", "a/../b", "a//b", "./a", "a/.", "a/", "a\\b", "a\0b"]
)
def test_paths_that_could_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a relative path"):
        relative_parts(name)
    with pytest.raises(ValueError, match="not a relative path"), open_inside(tmp_path, name):
        pass


def test_a_regular_file_is_read_and_measured(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    record = copy_new(BytesIO(b"x" * 3_000_000), tmp_path / "a" / "b" / "c")
    assert measure_inside(tmp_path, "a/b/c") == record
    assert record.size == 3_000_000
    assert len(read_inside(tmp_path, "a/b/c", 10)) == 11


def link_file(folder: Path) -> str:
    (folder / "target").write_text("secret")
    (folder / "link").symlink_to(folder / "target")
    return "link"


def link_folder(folder: Path) -> str:
    (folder / "real").mkdir()
    (folder / "real" / "file").write_text("secret")
    (folder / "away").symlink_to(folder / "real")
    return "away/file"


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def subfolder(folder: Path) -> str:
    (folder / "sub").mkdir()
    return "sub"


@pytest.mark.parametrize("plant", [link_file, link_folder, pipe, subfolder])
def test_links_pipes_and_folders_are_not_read(tmp_path: Path, plant: Callable[[Path], str]) -> None:
    name = plant(tmp_path)
    with pytest.raises(OSError, match=r"."), open_inside(tmp_path, name):
        pass


def test_a_folder_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match=r"."), open_inside(tmp_path / "link", "file"):
        pass


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOENT])
def test_a_lag_of_a_network_file_system_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "file").write_bytes(b"there")
    left = [OSError(code, "lag"), OSError(code, "lag")]
    real = os.open

    def lagging(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "file" and left:
            raise left.pop()
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", lagging)
    assert read_inside(tmp_path, "file", 5) == b"there"
    assert left == []


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "a" / "link").symlink_to("file")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a/file", "a/link", "a/none", "none/file", "a/file/below"):
        try:
            with open_inside(tmp_path, name):
                pass
        except OSError:
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_files_of_a_tree_include_links_and_do_not_follow_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "up").symlink_to(tmp_path)
    assert sorted(tree_files(tmp_path)) == ["a/file", "up"]
