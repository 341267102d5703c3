"""Trouble with the place of a cache is told, by name of the folder or mount."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphkiln.cache.errors import RootUnusable
from graphkiln.cache.store.surroundings import concerns, mount_of, require_exec

MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/models rw,relatime - nfs4 server:/export rw,vers=4.2
31 21 0:41 / /mnt/with\040space rw,nosuid,noexec - tmpfs tmpfs rw
32 30 0:42 / /mnt/models/local rw - xfs /dev/sdb rw
33 32 0:43 / /mnt/models/local rw - overlay overlay rw
a line that is cut
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/mnt/models/cache", "nfs4"),
        ("/mnt/modelsx", "ext4"),
        ("/mnt/models/local/x", "overlay"),
        ("/mnt/with space/x", "tmpfs"),
    ],
)
def test_the_deepest_and_latest_mount_holds_a_path(mounts: Path, path: str, kind: str) -> None:
    mount = mount_of(Path(path), mounts)
    assert mount is not None
    assert mount.kind == kind


def test_network_and_noexec_mounts_are_told(mounts: Path) -> None:
    (network,) = concerns(Path("/mnt/models/cache"), mounts)
    assert "/mnt/models is a network mount (nfs4)" in network
    (noexec,) = concerns(Path("/mnt/with space/cache"), mounts)
    assert "/mnt/with space is mounted noexec" in noexec


@pytest.mark.parametrize(("mode", "who"), [(0o770, "its group"), (0o777, "everybody")])
def test_folders_that_others_can_write_are_told_and_sticky_ones_are_not(
    tmp_path: Path, mounts: Path, mode: int, who: str
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    assert concerns(folder / "cache", mounts) == []
    folder.chmod(mode)
    assert concerns(folder / "cache", mounts) == [f"{folder} can be written by {who}"]
    folder.chmod(mode | 0o1000)
    assert concerns(folder / "cache", mounts) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_told(tmp_path: Path, mounts: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    os.chown(folder, 54321, 54321)
    assert concerns(folder, mounts) == [f"{folder} belongs to uid 54321, who can replace what is in it"]


def test_a_system_that_does_not_tell_its_mounts_gives_none(tmp_path: Path) -> None:
    assert mount_of(tmp_path, tmp_path / "none") is None


def test_a_root_that_nothing_can_be_loaded_from_is_refused_by_name(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    for options in ("rw,noexec", "rw"):
        mounts.write_text(f"1 0 0:1 / {tmp_path} {options} - ext4 /dev/x rw\n")
        if options == "rw":
            require_exec(tmp_path / "root", mounts)
            continue
        with pytest.raises(RootUnusable, match="mounted noexec"):
            require_exec(tmp_path / "root", mounts)
