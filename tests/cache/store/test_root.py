"""Which folder is the cache, and that nothing is created before something is written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from graphkiln.cache.errors import RootUnusable
from graphkiln.cache.store.root import CacheRoot, choose_root, resolve_root


def test_the_order_of_what_chooses(tmp_path: Path) -> None:
    home, xdg, variable = tmp_path / "home", tmp_path / "xdg", tmp_path / "variable"
    home.mkdir()
    environ = {"HOME": str(home), "XDG_CACHE_HOME": str(xdg), "GRAPHKILN_CACHE_ROOT": str(variable)}
    assert resolve_root(tmp_path / "given", environ) == tmp_path / "given"
    assert resolve_root(None, environ) == variable
    del environ["GRAPHKILN_CACHE_ROOT"]
    assert resolve_root(None, environ) == xdg / "graphkiln"
    del environ["XDG_CACHE_HOME"]
    assert resolve_root(None, environ) == home / ".cache" / "graphkiln"
    assert os.listdir(tmp_path) == ["home"]
    assert os.listdir(home) == []


def test_empty_settings_count_as_unset(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "GRAPHKILN_CACHE_ROOT": ""}
    assert resolve_root("", environ) == tmp_path / ".cache" / "graphkiln"


def test_a_relative_xdg_folder_is_ignored_as_its_rules_say(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "cache"}
    assert choose_root(None, environ).chosen_by == "the home folder"


def test_a_relative_path_is_made_absolute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = resolve_root(None, {"GRAPHKILN_CACHE_ROOT": "here/../there"})
    root = CacheRoot(Path("there"))
    monkeypatch.chdir("/")
    assert path == tmp_path / "there"
    assert root.cache == tmp_path / "there" / "torch_compile_cache"


def test_a_tilde_is_the_home_folder_even_without_a_shell(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "GRAPHKILN_CACHE_ROOT": "~/c"}
    assert resolve_root(None, environ) == tmp_path / "c"


def test_a_home_that_cannot_hold_a_cache_gives_a_private_folder_named_after_the_uid(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    choice = choose_root(None, {"HOME": str(file), "TMPDIR": str(tmp_path)})
    assert choice.path == tmp_path / f"graphkiln-{os.getuid()}"
    assert "uid" in choice.chosen_by
    assert not choice.path.exists()
    CacheRoot(choice.path).ensure()
    assert stat.S_IMODE(choice.path.stat().st_mode) == 0o700
    assert resolve_root(None, {"HOME": str(file), "TMPDIR": str(tmp_path)}) == choice.path


@pytest.mark.parametrize("planted", ["file", "link", "open to all"])
def test_a_private_folder_that_is_not_private_is_refused(tmp_path: Path, planted: str) -> None:
    path = tmp_path / f"graphkiln-{os.getuid()}"
    if planted == "file":
        path.write_text("")
    elif planted == "link":
        path.symlink_to(tmp_path)
    else:
        path.mkdir()
        path.chmod(0o777)
    file = tmp_path / "home"
    file.write_text("")
    with pytest.raises(RootUnusable) as caught:
        resolve_root(None, {"HOME": str(file), "TMPDIR": str(tmp_path)})
    assert "GRAPHKILN_CACHE_ROOT" in caught.value.remedy


@pytest.mark.parametrize("text", ["/" + "a" * 256, "/" + "/".join(["b" * 200] * 20)])
def test_a_path_too_long_for_an_entry_is_refused_before_anything_is_done(text: str) -> None:
    with pytest.raises(RootUnusable, match="too long"):
        resolve_root(None, {"GRAPHKILN_CACHE_ROOT": text})


@pytest.mark.parametrize("name", ["with space", "it's", 'quo"te', "ünï-目录", "a" * 250])
def test_odd_names_work(tmp_path: Path, name: str) -> None:
    root = CacheRoot(resolve_root(tmp_path / name))
    root.ensure()
    assert (tmp_path / name / "staging").is_dir()


def test_ensure_makes_private_folders_and_the_tag_and_can_be_repeated(root: CacheRoot) -> None:
    for _ in range(2):
        root.ensure()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.path.iterdir() if path.is_dir()}
    assert modes == {"torch_compile_cache": 0o700, "locks": 0o700, "staging": 0o700}
    assert stat.S_IMODE(root.path.stat().st_mode) == 0o700
    assert (
        (root.path / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    )
    assert list(root.staging.iterdir()) == []


def test_a_file_where_the_root_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(RootUnusable) as caught:
        CacheRoot(tmp_path / "root").ensure()
    assert caught.value.path == tmp_path / "root"
    assert caught.value.remedy


def test_an_explicit_folder_keeps_the_rest_out_of_sight(tmp_path: Path) -> None:
    root = CacheRoot.of_folder(tmp_path / "mine")
    root.ensure()
    assert os.listdir(tmp_path / "mine") == [".graphkiln"]
    assert root.cache == tmp_path / "mine"
