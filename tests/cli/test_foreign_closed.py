"""What may not be read or written in a foreign tree is told, and neither taken for empty nor removed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.other_user import as_other_user, opened_again, opened_for_another_user
from tests.layouts.trees import Vllm


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Gives a folder outside pytest's own, which every other pytest that starts closes to other users."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_root_that_cannot_be_written_is_told_before_anything_else(tree: Vllm, tmp_path: Path) -> None:
    from tests.cache.inspect.made import cache_at, make_entry

    own = make_entry(cache_at(tmp_path / "own"))
    opened_for_another_user(tmp_path)
    for words in (
        ["prune", "--max-size", "0", "--yes", "--cache-root", str(tmp_path / "own")],
        ["rm", own.short, "--yes", "--cache-root", str(tmp_path / "own")],
        ["prune", "--layout", f"vllm:{tree.root}", "--max-size", "0", "--yes"],
    ):
        done = as_other_user("cache", *words)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert "cannot be written" in done.stderr
        assert "freed" not in done.stderr
    # The plan alone needs no write.
    assert as_other_user("cache", "prune", "--layout", f"vllm:{tree.root}", "--max-size", "0").returncode == 0
    opened_again(tmp_path)


@pytest.mark.parametrize(
    "closed",
    [
        "{short}",
        "{short}/rank_0_0",
        "torch_aot_compile/{long}",
        "torch_aot_compile",
        "{short}/rank_0_0/backbone/cache_key_factors.json",
        "torch_aot_compile/{long}/rank_0_0/model",
    ],
)
def test_what_may_not_be_looked_into_is_unknown_and_no_litter(
    closed: str, tree: Vllm, tmp_path: Path
) -> None:
    layout = f"vllm:{tree.root}"
    folder = tree.pieces.parent / closed.format(short=tree.short, long=tree.long)
    opened_for_another_user(tmp_path)
    folder.chmod(0)
    try:
        done = as_other_user("cache", "ls", "--layout", layout, "--json")
        rows = json.loads(done.stdout)["entries"]
        # Whether an AOT folder is a short-hash folder's shows in the latter: without it, it stands alone.
        assert {row["id"]: row["status"] for row in rows} == {tree.short: ["unknown"]} | (
            {} if "aot" in closed or "json" in closed else {tree.long[:10]: ["sound"]}
        )
        done = as_other_user("cache", "verify", "--layout", layout)
        assert done.returncode == 3
        assert "this user may not look into it" in done.stdout
        plan = as_other_user("cache", "prune", "--layout", layout, "--litter", "--older-than", "1d", "--json")
        found = json.loads(plan.stdout)
        assert tree.short not in [item["id"] for item in found["remove"]]
    finally:
        opened_again(tmp_path)


@pytest.mark.parametrize("closed", ["rank_1_0", "rank_1_0/model", "."])
def test_what_may_not_be_looked_into_has_no_other_fault(closed: str, tmp_path: Path) -> None:
    tree = Vllm(tmp_path / "root", ranks=("0_0", "1_0")).write()
    opened_for_another_user(tmp_path)
    (tree.aot_folder / closed).chmod(0)
    done = as_other_user("cache", "verify", "--layout", f"vllm:{tree.root}", "--json")
    opened_again(tmp_path)
    [entry] = json.loads(done.stdout)["entries"]
    name = f"torch_aot_compile/{tree.long[:10]}/{closed}"
    assert [(fault["file"], fault["kind"]) for fault in entry["faults"]] == [(name, "unread")]
    assert (done.returncode, entry["status"], entry["missing_ranks"]) == (3, "unknown", [])
    assert json.loads(done.stdout)["notes"] == {tree.short: []}


def test_damage_beside_what_may_not_be_looked_into_is_known(tree: Vllm, tmp_path: Path) -> None:
    (tree.aot_folder / "inductor_cache" / "ab" / f"c{'a' * 51}.main.so").write_bytes(b"")
    opened_for_another_user(tmp_path)
    tree.part.chmod(0)
    done = as_other_user("cache", "verify", "--layout", f"vllm:{tree.root}", "--json")
    opened_again(tmp_path)
    assert done.returncode == 1
    kinds = {fault["kind"] for entry in json.loads(done.stdout)["entries"] for fault in entry["faults"]}
    assert kinds == {"unread", "size"}


@pytest.mark.parametrize("closed", ["{short}", "{short}/rank_0_0"])
def test_an_aot_folder_is_no_orphan_while_an_entry_cannot_be_read(
    closed: str, tree: Vllm, tmp_path: Path
) -> None:
    other = Vllm(tree.root, config="9876543210", at=tree.at + 1000).write()
    opened_for_another_user(tmp_path)
    (tree.pieces.parent / closed.format(short=tree.short)).chmod(0)
    layout = f"vllm:{tree.root}"
    done = as_other_user("cache", "prune", "--layout", layout, "--max-size", "0", "--json")
    removed = json.loads(done.stdout)["remove"]
    assert {item["id"] for item in removed} <= {other.short}, done.stderr
    assert tree.long not in done.stdout
    done = as_other_user("cache", "prune", "--layout", layout, "--older-than", "1d")
    opened_again(tmp_path)
    assert f"is kept: it may belong to {tree.short}, which cannot be read" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_a_tree_that_may_not_be_listed_is_no_empty_one(command: str, tree: Vllm, tmp_path: Path) -> None:
    opened_for_another_user(tmp_path)
    tree.pieces.parent.chmod(0)
    more = ["--litter"] if command == "prune" else []
    done = as_other_user("cache", command, "--layout", f"vllm:{tree.root}", *more)
    tree.pieces.parent.chmod(0o755)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert done.stderr.startswith(f"error: {tree.pieces.parent}: Permission denied")


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_an_entry_that_cannot_be_emptied_stays_whole(mode: int, tree: Vllm, tmp_path: Path) -> None:
    opened_for_another_user(tmp_path)
    inner = next(path for path in sorted(tree.aot_folder.rglob("inductor_cache")) if path.is_dir())
    for path in tree.root.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    inner.chmod(mode)
    try:
        for words in (["rm", f"vllm:{tree.root}#{tree.short}"], ["prune", "--layout", f"vllm:{tree.root}",
                      "--max-size", "0"]):  # fmt: skip
            done = as_other_user("cache", *words, "--yes")
            assert (tree.pieces.exists(), tree.model.exists()) == (True, True), done.stderr
        done = as_other_user("cache", "rm", f"vllm:{tree.root}#{tree.short}", "--yes")
        assert done.returncode == 1
        assert f"{tree.short} was not removed: " in done.stderr
        assert "inductor_cache cannot be " in done.stderr
        assert "deleted" not in done.stderr
    finally:
        inner.chmod(0o755)
        tmp_path.chmod(0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="needs files of two users")
def test_what_was_moved_away_and_cannot_be_deleted_is_named(tree: Vllm, tmp_path: Path) -> None:
    opened_for_another_user(tmp_path)
    for path in tree.root.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    # In a folder with the sticky bit only the owner of a file deletes it, whoever may write there.
    os.chown(tree.part, 0, 0)
    os.chown(tree.part / "cache_key_factors.json", 0, 0)
    tree.part.chmod(0o1777)
    done = as_other_user("cache", "rm", f"vllm:{tree.root}#{tree.short}", "--yes")
    assert done.returncode == 4
    [line] = [line for line in done.stderr.splitlines() if "is not freed" in line]
    assert line.startswith(
        f"{tree.short} is not freed, what is left of it lies in {tree.pieces.parent}/.graphkiln"
    )
    assert line.endswith(": operation not permitted")
    assert "0 things removed" in done.stderr
