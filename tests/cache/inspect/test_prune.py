"""What prune removes from a cache of every kind of entry, and what it never removes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import BadFilter
from graphkiln.cache.inspect.catalogue import scan
from graphkiln.cache.inspect.prune import Plan, Rules, make_plan
from graphkiln.cache.inspect.removal import free_bytes, leftovers, remove, remove_rows
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.trash import discarded
from tests.cache.inspect.made import NOW, cache_at, make_entry, note_use

DAY = 86400.0
KiB = 1 << 10


@dataclass(frozen=True)
class Tree:
    """A cache of 300 entries: `entries[n]` is n days old; some are special."""

    store: Store
    entries: tuple[Entry, ...]
    pinned: Entry
    labelled: Entry
    damaged: Entry
    foreign: Entry
    used: Entry

    @property
    def kept(self) -> set[str]:
        return {self.pinned.short, self.labelled.short, self.foreign.short}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """300 entries of three models, with ages, sizes and torch versions, and files of other people's."""
    with pytest.MonkeyPatch.context() as patch:
        # Nobody pulls the plug here, and this is what takes the time.
        patch.setattr(os, "fsync", lambda descriptor: None)
        return build(tmp_path_factory)


def build(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    store = cache_at(tmp_path_factory.mktemp("prune") / "root")
    entries = tuple(
        make_entry(
            store,
            f"code {number}",
            model=f"model-{number % 3}",
            dtype=("float32", "bfloat16")[number % 2],
            # Torch moved on 100 days ago.
            torch="2.12.0" if number >= 100 else "2.13.0",
            kernel=b"x" * (number % 7) * KiB,
            age_days=number,
        )
        for number in range(300)
    )
    pinned, labelled, damaged, foreign, used = (entries[at] for at in (250, 251, 252, 253, 254))
    update_state(store.root, pinned.path, pinned=True)
    update_state(store.root, labelled.path, label="prod")
    (damaged.path / "factors.json").write_bytes(b"")
    (foreign.path / "rank_0_0" / "notes.txt").write_text("mine")
    note_use(used, 0.5)
    vllm = store.root.cache / "0123456789" / "rank_0_0" / "backbone"
    vllm.mkdir(parents=True)
    (vllm / "vllm_compile_cache.py").write_text("{}")
    (store.root.cache / "README").write_text("mine")
    (store.root.path / "notes.txt").write_text("mine")
    return Tree(store, entries, pinned, labelled, damaged, foreign, used)


@pytest.fixture
def tree(built: Tree, tmp_path: Path) -> Tree:
    """A copy to remove from."""
    shutil.copytree(built.store.root.path, tmp_path / "root")
    store = cache_at(tmp_path / "root")

    def there(entry: Entry) -> Entry:
        path = store.root.cache / entry.short
        return entry if not path.exists() else Entry(path)

    named = {
        name: there(getattr(built, name)) for name in ("pinned", "labelled", "damaged", "foreign", "used")
    }
    return Tree(store, tuple(map(there, built.entries)), **named)


def plan(tree: Tree, now: Any = NOW, free: int = 0, **rules: Any) -> Plan:
    return make_plan(scan(tree.store), Rules(**rules), free_bytes=free, now=now)


def ids(plan: Plan) -> set[str]:
    return {item.row.id for item in plan.doomed}


def shorts(tree: Tree, numbers: range) -> set[str]:
    return {tree.entries[number].short for number in numbers}


def test_no_rule_removes_nothing(built: Tree) -> None:
    assert Rules().empty
    found = plan(built)
    assert (found.doomed, found.spared, found.size, found.files) == ((), (), 0, 0)


def test_by_age(built: Tree) -> None:
    found = plan(built, older_than=200.5 * DAY)
    assert ids(found) == shorts(built, range(201, 300)) - built.kept
    assert {item.row.id for item in found.spared} == built.kept
    reasons = {item.row.id: item.reason for item in found.doomed}
    assert reasons[built.entries[270].short] == "made 270 d ago"


def test_by_use_an_entry_that_was_never_used_counts_from_its_making(built: Tree) -> None:
    found = plan(built, unused_since=200.5 * DAY)
    assert ids(found) == shorts(built, range(201, 300)) - built.kept - {built.used.short}


def test_the_plan_knows_what_it_frees(built: Tree) -> None:
    found = plan(built, older_than=200.5 * DAY)
    size = sum(item.row.entry.total_bytes for item in found.doomed if isinstance(item.row.entry, Entry))
    assert found.size == size
    assert found.files == sum(
        1 for item in found.doomed for path in item.row.path.rglob("*") if path.is_file()
    )
    everything = scan(built.store)
    assert found.kept_size == everything.size - size
    assert found.kept_files == everything.files - found.files


@pytest.mark.parametrize(("rule", "column"), [("max_size", "size"), ("max_files", "files")])
def test_a_limit_takes_what_was_used_longest_ago_and_no_more(built: Tree, rule: str, column: str) -> None:
    rows = scan(built.store).rows
    total = sum(getattr(row, column) for row in rows)
    limit = total // 2
    found = plan(built, **{rule: limit})
    freed = sum(getattr(item.row, column) for item in found.doomed)
    assert total - freed <= limit < total - freed + getattr(found.doomed[-1].row, column)
    # The broken one is of no use to anybody; then the oldest, the kept and the used one apart.
    assert found.doomed[0].row.id == built.damaged.short
    order = [item.row.id for item in found.doomed[1:]]
    oldest = [built.entries[number].short for number in range(299, -1, -1)]
    skipped = built.kept | {built.used.short, built.damaged.short}
    assert order == [name for name in oldest if name not in skipped][: len(order)]
    assert found.unmet == ()


def test_a_limit_that_holds_takes_nothing_and_one_that_cannot_is_told(built: Tree) -> None:
    assert plan(built, max_files=10**6, max_size=10**12).doomed == ()
    found = plan(built, max_files=1)
    assert found.unmet == ("--max-files",)
    assert len(found.doomed) == 300 - len(built.kept)


def test_min_free_counts_what_the_disk_has(built: Tree) -> None:
    assert plan(built, free=10**9, min_free=10**9).doomed == ()
    found = plan(built, free=0, min_free=100 * KiB)
    assert 100 * KiB <= found.size < 100 * KiB + found.doomed[-1].row.size + KiB


def test_keep_last_is_by_model_and_counts_no_broken_one(built: Tree) -> None:
    found = plan(built, keep_last=2)
    assert scanned(built) - ids(found) - built.kept == shorts(built, range(6)) | {built.damaged.short}
    assert ids(plan(built, keep_last=0)) == scanned(built) - built.kept - {built.damaged.short}


def scanned(tree: Tree) -> set[str]:
    return {entry.short for entry in tree.entries}


def test_superseded_leaves_the_newest_of_each_configuration(built: Tree) -> None:
    # Three models in two dtypes: six configurations.
    found = plan(built, superseded=True)
    assert scanned(built) - ids(found) - built.kept == shorts(built, range(6))


def test_broken_takes_the_damaged_one_and_nothing_foreign(built: Tree) -> None:
    found = plan(built, broken=True)
    assert ids(found) == {built.damaged.short}
    assert {item.row.id for item in found.spared} == {"0123456789"}


def test_a_filter_alone_dooms_what_it_selects_and_beside_a_rule_narrows_it(built: Tree) -> None:
    dead = plan(built, filters=("compiler.torch!=2.13.0",))
    assert ids(dead) == shorts(built, range(100, 300)) - built.kept - {built.damaged.short}
    narrowed = plan(built, filters=("model=model-0",), older_than=200.5 * DAY)
    assert ids(narrowed) == shorts(built, range(201, 300, 3)) - built.kept
    with pytest.raises(BadFilter):
        plan(built, filters=("modle=x",))


def test_a_limit_with_a_filter_is_about_what_the_filter_selects(built: Tree) -> None:
    rows = [row for row in scan(built.store).rows if row.model == "model-0"]
    files = sum(row.files for row in rows)
    found = plan(built, filters=("model=model-0",), max_files=files // 2)
    assert {item.row.model for item in found.doomed} == {"model-0"}
    assert files - found.files <= files // 2


def test_what_is_stale_goes_with_its_reason(built: Tree) -> None:
    one = built.entries[7].short
    found = plan(built, stale={one: "env: X was 1", built.pinned.short: "env: X was 1"}, by_stale=True)
    assert [(item.row.id, item.reason) for item in found.doomed] == [(one, "env: X was 1")]
    assert plan(built, by_stale=True, filters=("model~model",)).doomed == ()


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_removing_takes_whole_planned_entries_and_no_other_file(tree: Tree) -> None:
    cache = tree.store.root.cache
    before = everything(cache)
    found = plan(tree, older_than=100.5 * DAY, broken=True)
    done = remove(tree.store, found, grace_s=3600)
    assert set(done.moved) == ids(found)
    assert done.skipped == ()
    gone = tuple(f"{name}/" for name in ids(found))
    assert everything(cache) == {name: data for name, data in before.items() if not name.startswith(gone)}
    assert (tree.store.root.path / "notes.txt").read_text() == "mine"
    assert (done.deleted_files, done.waiting) == (0, len(found.doomed))
    after = scan(tree.store)
    assert (after.size, after.files) == (found.kept_size, found.kept_files)


def test_without_a_grace_the_bytes_are_gone_at_once(tree: Tree) -> None:
    found = plan(tree, older_than=290.5 * DAY)
    done = remove(tree.store, found, grace_s=0)
    assert (done.deleted_size, done.deleted_files) == (found.size, found.files)
    assert discarded(tree.store.root) == []


def test_what_changed_since_the_plan_is_skipped_and_told(tree: Tree) -> None:
    found = plan(tree, older_than=296.5 * DAY)
    pinned, replaced = tree.entries[299], tree.entries[298]
    update_state(tree.store.root, pinned.path, pinned=True)
    shutil.rmtree(replaced.path)
    done = remove(tree.store, found, grace_s=0)
    assert done.moved == (tree.entries[297].short,)
    assert {name for name, _ in done.skipped} == {pinned.short, replaced.short}
    assert pinned.path.exists()


def test_quarantine_and_the_drafts_of_the_dead_are_left_over_and_those_of_the_living_are_not(
    tree: Tree, child: Callable[..., Any]
) -> None:
    store = tree.store
    store.set_aside(tree.entries[0], {"reason": "a try"})
    aside = store.set_aside(tree.entries[1], {"reason": "a try"})
    assert aside is not None
    (aside / tree.entries[1].short / "mine.txt").write_text("mine")
    alive = child("stay_in_draft", store.root.path, '{"a": 1}')
    dead = child("stay_in_draft", store.root.path, '{"a": 2}')
    for process in (alive, dead):
        assert process.stdout.readline() == "ready\n"
    dead.kill()
    dead.wait()
    (store.root.staging / "mine").mkdir()
    found = leftovers(store.root)
    assert [(item.kind, item.path.name[:10]) for item in found if item.kind == "quarantine"] == [
        ("quarantine", tree.entries[0].short)
    ]
    [staged] = [item for item in found if item.kind == "staging"]
    assert f"-{dead.pid}-" in staged.path.name
    remove(store, make_plan(scan(store), Rules(broken=True), leftovers=found), grace_s=0)
    assert not staged.path.exists()
    assert aside.exists()
    assert [path.name.split("-")[1] for path in store.root.staging.iterdir() if "-" in path.name] == [
        str(alive.pid)
    ]
    alive.communicate("\n", timeout=30)


def test_named_entries_go_although_they_are_labelled(tree: Tree) -> None:
    [row] = [row for row in scan(tree.store).rows if row.id == tree.labelled.short]
    assert remove_rows(tree.store, [row], grace_s=0).moved == (row.id,)


def test_a_read_only_cache_is_told_entry_by_entry(tree: Tree) -> None:
    found = plan(tree, older_than=298.5 * DAY)
    shutil.rmtree(tree.store.root.locks)
    tree.store.root.locks.write_text("a file where a folder should be")
    done = remove(tree.store, found, grace_s=0)
    assert done.moved == ()
    assert [name for name, _ in done.skipped] == [tree.entries[299].short]


def test_the_free_bytes_are_those_of_the_disk_even_before_the_cache_is_there(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    free = free_bytes(cache_at(tmp_path / "a" / "b").root)
    assert abs(free - status.f_bavail * status.f_frsize) < 1 << 30
