"""Removing foreign entries: only what a rule names, whole folders, never what changed or is in use."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from graphkiln.cache.inspect.prune import Rules, make_plan
from graphkiln.cache.layouts.found import ForeignRow
from graphkiln.cache.layouts.removal import places_of, remove_foreign, sweep
from graphkiln.cache.layouts.vllm.reader import VllmReader
from tests.layouts.conftest import unpack
from tests.layouts.trees import SOURCE, Vllm

READER = VllmReader()


def doomed(root: Path, rules: Rules) -> list[ForeignRow]:
    plan = make_plan(READER.scan(root), rules)
    return [item.row for item in plan.doomed if isinstance(item.row, ForeignRow)]


def left(root: Path) -> set[str]:
    return {row.id for row in READER.scan(root).rows}


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (Rules(litter=True), {"sound", "old"}),
        (Rules(superseded=True), {"sound", "disabled"}),
        (Rules(older_than=86400 * 365), {"sound"}),
        (Rules(max_size=1), set()),
        (Rules(filters=("status=litter",)), {"sound", "old"}),
        (Rules(broken=True), {"sound", "old", "disabled"}),
        # A hit of a mega AOT artifact writes nothing: when it was used last is not known.
        (Rules(unused_since=1), {"sound", "old", "disabled"}),
    ],
)
def test_a_rule_removes_whole_entries(rules: Rules, kept: set[str], tmp_path: Path) -> None:
    import time

    trees = {
        "old": Vllm(tmp_path).write(),
        "sound": Vllm(tmp_path, compiler_text="newer", at=time.time() - 3600).write(),
        "disabled": Vllm(tmp_path, disabled=True, config="9876543210").write(),
    }
    rows = doomed(tmp_path, rules)
    folders = {folder for row in rows for folder in row.folders}
    done = remove_foreign(rows)
    assert done.skipped == ()
    assert left(tmp_path) == {trees[name].short for name in kept}
    assert not any(folder.exists() for folder in folders)
    assert all(
        tree.aot_folder.exists() for name, tree in trees.items() if name in kept and name != "disabled"
    )
    assert not list(tmp_path.rglob(".graphkiln-*"))


def test_an_overwritten_folder_goes_without_the_aot_folder(tmp_path: Path) -> None:
    before = Vllm(tmp_path).write()
    after = Vllm(tmp_path, source=SOURCE + "# edited\n", at=before.at + 1000).write()
    assert remove_foreign(doomed(tmp_path, Rules(litter=True))).moved == (before.short,)
    assert after.model.exists()
    assert left(tmp_path) == {after.short}


def test_what_changed_since_the_plan_stays(tmp_path: Path) -> None:
    tree = Vllm(tmp_path, disabled=True).write()
    rows = doomed(tmp_path, Rules(litter=True))
    (tree.part / "vllm_compile_cache.py").write_text("{}")
    assert remove_foreign(rows).skipped == ((tree.short, "it changed since the plan was made"),)
    assert tree.pieces.exists()


def test_where_a_process_compiles_nothing_is_removed(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    lock = next(tree.aot_folder.rglob("*.lock"))
    rows = doomed(tmp_path, Rules(max_size=0))
    with open(lock, "rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        [(name, why)] = remove_foreign(rows).skipped
    assert (name, why.startswith("a process holds inductor_cache/locks/")) == (tree.short, True)
    # A lock file that nobody holds means nothing.
    assert remove_foreign(rows).moved == (tree.short,)


def test_an_entry_of_which_one_folder_cannot_be_moved_stays_whole(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    [row] = doomed(tmp_path, Rules(max_size=0))
    assert row.folders == (tree.pieces, tree.aot_folder)
    stuck = replace(row, folders=(*row.folders, tmp_path / "gone"))
    done = remove_foreign([stuck])
    assert (done.moved, done.skipped) == ((), ((tree.short, "no such file or directory"),))
    sweep(places_of([stuck]))
    assert tree.model.exists()
    assert not list(tmp_path.rglob(".graphkiln-*"))
    assert READER.scan(tmp_path).rows == (row,)


def test_what_is_not_known_stays(tmp_path: Path) -> None:
    first, other = Vllm(tmp_path).write(), Vllm(tmp_path, config="9876543210", source=SOURCE + "#\n").write()
    (first.part / "cache_key_factors.json").write_text('{"surprise": 1}')
    (other.part / "notes.txt").write_text("mine")
    plan = make_plan(READER.scan(tmp_path), Rules(older_than=0, max_size=0))
    assert plan.doomed == ()
    assert {item.row.id: item.reason for item in plan.spared} == {
        first.short: "no reader knows its version",
        other.short: "it holds a file that is not vllm's: rank_0_0/backbone/notes.txt",
    }


def test_a_guess_is_told_in_the_plan(tmp_path: Path) -> None:
    Vllm(tmp_path).write()
    Vllm(tmp_path, config="9876543210", at=1_700_001_000.0).write()
    plan = make_plan(READER.scan(tmp_path), Rules(max_size=0))
    assert all("is a guess" in item.reason for item in plan.doomed)


def test_an_interrupted_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    place = tree.pieces.parent
    (place / ".graphkiln-removed-0123456789-0011aabb").mkdir()
    (place / ".graphkiln-removed-mine").mkdir()
    sweep(places_of(READER.scan(tmp_path).rows))
    assert sorted(name for name in os.listdir(place) if name.startswith(".")) == [".graphkiln-removed-mine"]


def test_a_real_root_is_pruned(tmp_path: Path) -> None:
    root = unpack("m12-source-edit", tmp_path)
    assert remove_foreign(doomed(root, Rules(litter=True))).moved == ("74f21e6911",)
    [row] = READER.scan(root).rows
    assert READER.verify(row).faults == ()  # type: ignore[arg-type]
    shutil.rmtree(root)
    root = unpack("k01-killed", tmp_path)
    remove_foreign(doomed(root, Rules(litter=True)))
    assert READER.scan(root).rows == ()


def test_a_plan_removes_nothing(unpacked: Callable[[str], Path]) -> None:
    root = unpacked("multi")
    before = sorted(map(str, root.rglob("*")))
    assert len(doomed(root, Rules(max_size=0))) == 7
    assert sorted(map(str, root.rglob("*"))) == before
