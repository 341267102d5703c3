"""The forms of a vLLM cache, how its folders are linked, and what is told of an entry."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import AmbiguousEntry, EntryNotFound, UnknownLayout
from graphkiln.cache.inspect.filters import select
from graphkiln.cache.layouts.found import ForeignRow
from graphkiln.cache.layouts.readers import TreeRef, find_entry, open_tree, parse_ref
from graphkiln.cache.layouts.vllm.model import read_model
from graphkiln.cache.layouts.vllm.reader import VllmReader
from tests.layouts.trees import FOLDER, NAME, SOURCE, Vllm, pickled, sha256

READER = VllmReader()


def rows_of(root: Path) -> dict[str, ForeignRow]:
    return {row.id: row for row in READER.scan(root).rows if isinstance(row, ForeignRow)}


FORMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "mega": ({}, "mega AOT", "sound"),
    "mega off": ({"mega": False}, "AOT", "sound"),
    "aot off": ({"aot": False, "mega": False}, "pieces", "sound"),
    "unpacked": ({"aot": False, "mega": False, "unpacked": True}, "pieces, unpacked", "sound"),
    "adaptor": ({"aot": False, "mega": False, "adaptor": True}, "adaptor", "sound"),
    "disabled": ({"disabled": True}, "nothing to load", "litter"),
    "trace once": ({"backend": "inductor"}, "trace once", "litter"),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_listed_and_verifies(form: str, tmp_path: Path) -> None:
    changes, wanted, health = FORMS[form]
    tree = Vllm(tmp_path, **changes).write()
    [row] = rows_of(tmp_path).values()
    assert (row.id, row.form, row.health) == (tree.short, wanted, health)
    assert (row.dtype, row.model) == ("float32", "Tiny" if tree.aot and not tree.disabled else "")
    verdict = READER.verify(row)
    assert {fault.kind for fault in verdict.faults} == ({"hollow"} if health == "litter" else set())
    found = READER.account(row)
    assert found.hashes["code"] == tree.code
    assert found.factors["env"] == tree.variables
    if health == "sound":
        assert found.factors["config"]["max_num_batched_tokens"] == 64
        assert [piece.number for piece in found.pieces] == ([0, 1] if wanted == "mega AOT" else [0, 2])
        assert {one["vectorised kernels"] for one in found.build.values()} == {2}


def test_an_aot_folder_is_linked_by_its_name_where_mega_artifacts_are_off(tmp_path: Path) -> None:
    first = Vllm(tmp_path, mega=False).write()
    other = Vllm(tmp_path, mega=False, config="9876543210").write()
    for tree in (first, other):
        unit = rows_of(tmp_path)[tree.short].unit
        assert (unit.aot.name, unit.certain, unit.version) == (tree.long, True, "0.32.0")


def test_an_aot_folder_is_linked_by_the_sources_in_it(tmp_path: Path) -> None:
    first = Vllm(tmp_path).write()
    other = Vllm(tmp_path, source=SOURCE + "# edited\n", config="9876543210").write()
    for tree in (first, other):
        unit = rows_of(tmp_path)[tree.short].unit
        assert (unit.aot.name, unit.certain) == (tree.long, True)
        assert "sources in model" in unit.how


def test_where_entries_share_their_code_the_time_is_a_guess_and_told_as_one(tmp_path: Path) -> None:
    trees = [
        Vllm(tmp_path, config=config, at=1_700_000_000.0 + 100 * number).write()
        for number, config in enumerate(("0123456789", "9876543210", "aaaaaaaaaa"))
    ]
    rows = rows_of(tmp_path)
    for tree in trees:
        unit = rows[tree.short].unit
        assert (unit.aot.name, unit.certain) == (tree.long, False)
        assert unit.how.startswith("a guess: 3 entries have its code")


def test_a_package_that_looks_like_a_module_is_tried_too(tmp_path: Path) -> None:
    tree = Vllm(tmp_path)
    path = f"{FOLDER}/{NAME.replace('.', '/')}"
    model = open_model(tree)
    hashes = list(model.code_hashes())
    assert hashes[0] == tree.code
    assert sha256(f"{path}/__init__.py\n{SOURCE}") in hashes
    assert next(model.code_hashes({f"{path}/__init__.py"})) == hashes[1]


def open_model(tree: Vllm) -> Any:
    return read_model(pickled(tree.outer()))


def test_after_an_edit_the_older_short_hash_folder_is_told_as_overwritten(tmp_path: Path) -> None:
    before = Vllm(tmp_path).write()
    after = Vllm(tmp_path, source=SOURCE + "# edited\n", at=before.at + 1000).write()
    assert before.long == after.long
    rows = rows_of(tmp_path)
    assert rows[before.short].statuses == ("litter", "superseded")
    assert after.short in rows[before.short].fault
    assert rows[after.short].unit.aot.name == after.long
    # Nothing is wrong with it: it is only of no use any more.
    assert READER.verify(rows[before.short]).faults == ()


def test_an_entry_of_older_code_is_superseded(tmp_path: Path) -> None:
    old = Vllm(tmp_path, aot=False, mega=False).write()
    new = Vllm(tmp_path, aot=False, mega=False, source=SOURCE + "# edited\n", at=old.at + 1000).write()
    rows = rows_of(tmp_path)
    assert (rows[old.short].superseded, rows[new.short].superseded) == (True, False)


def test_what_a_killed_start_leaves_is_litter(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    (tree.part / "computation_graph.py").unlink()
    tree.model.unlink()
    [row] = rows_of(tmp_path).values()
    assert (row.health, row.fault) == ("litter", "left by a run that failed or was killed")
    assert {folder.name for folder in row.folders} == {tree.short, tree.long}


def test_an_aot_folder_alone_is_an_entry_and_hits_all_the_same(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    shutil.rmtree(tree.pieces)
    [row] = rows_of(tmp_path).values()
    assert (row.id, row.key, row.health, row.hashes) == (tree.long[:10], tree.long, "sound", {})
    assert "a start hits all the same" in READER.verify(row).notes[0]


def test_a_folder_that_the_user_named_is_one_entry_without_a_name_of_its_own(tmp_path: Path) -> None:
    tree = Vllm(tmp_path / "made", aot=False, mega=False).write()
    shutil.move(tree.pieces, tmp_path / "mine")
    [row] = rows_of(tmp_path / "mine").values()
    assert (row.id, row.health) == ("mine", "sound")
    assert READER.verify(row).faults == ()


def test_missing_ranks_are_told_where_they_can_be_known(tmp_path: Path) -> None:
    tree = Vllm(tmp_path, ranks=("0_0", "1_0", "2_0")).write()
    (tree.aot_folder / "rank_1_0" / "model").unlink()
    [row] = rows_of(tmp_path).values()
    assert (row.health, row.fault) == ("partial", "no rank 1_0")
    assert READER.verify(row).missing_ranks == ("1_0",)


def test_an_edited_factor_is_told_by_the_folder_name(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    path = tree.part / "cache_key_factors.json"
    path.write_text(path.read_text().replace("512", "513"))
    [row] = rows_of(tmp_path).values()
    assert row.health == "broken"
    assert "the folder should be called" in row.fault
    [fault] = READER.verify(row).faults
    assert (fault.kind, getattr(fault, "effect", "")[:9]) == ("name", "no effect")


def test_last_use_is_known_only_where_a_hit_writes(tmp_path: Path) -> None:
    mega = Vllm(tmp_path / "a").write()
    off = Vllm(tmp_path / "b", mega=False).write()
    assert rows_of(mega.root)[mega.short].last_used is None
    later = off.at + 86400
    for path in (off.aot_folder / "inductor_cache").rglob("fxgraph/*/*/*"):
        os.utime(path, (later, later))
    row = rows_of(off.root)[off.short]
    assert row.last_used == "2023-11-15T22:13:20+00:00"
    # What is not known is no match, so that nothing is removed because of it.
    assert select(rows_of(mega.root).values(), ["unused>1d"]) == []
    assert select(rows_of(off.root).values(), ["unused>1d"]) == [row]


def test_filters_reach_what_is_recovered(tmp_path: Path) -> None:
    first = Vllm(tmp_path).write()
    other = Vllm(tmp_path, dtype="bfloat16", config="9876543210", env={"VLLM_XGRAMMAR_CACHE_MB": 256}).write()
    rows = list(rows_of(tmp_path).values())

    def ids(expression: str) -> set[str]:
        return {row.id for row in select(rows, [expression])}

    assert ids("dtype=bfloat16") == {other.short}
    assert ids("env.VLLM_XGRAMMAR_CACHE_MB=512") == {first.short}
    assert ids("config.max_num_batched_tokens=64") == {first.short, other.short}
    assert ids("code.module~toy.models") == {first.short, other.short}
    assert ids("compiler.torch>=2.13") == {first.short, other.short}


def test_an_unknown_version_is_refused_with_what_was_seen(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    (tree.part / "cache_key_factors.json").write_text('{"env": {}, "surprise": 1}')
    [row] = rows_of(tmp_path).values()
    assert row.health == "unknown"
    assert row.fault == "rank_0_0/backbone/cache_key_factors.json: version (holds env, surprise)"
    assert READER.verify(row).status == "unknown"
    other = tmp_path / "torch_compile_cache" / "0123456789"
    other.mkdir()
    (other / "entry.json").write_text("{}")
    row = rows_of(tmp_path)["0123456789"]
    assert (row.health, row.fault) == ("unknown", ".: version (it holds entry.json)")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "surprise").touch()
    with pytest.raises(UnknownLayout, match="it holds surprise"):
        READER.scan(tmp_path / "elsewhere")


def test_references_name_a_tree_and_an_entry(tmp_path: Path) -> None:
    tree = Vllm(tmp_path, mega=False).write()
    Vllm(tmp_path, mega=False, config="9876543210").write()
    assert parse_ref("vllm:") == TreeRef("vllm")
    assert parse_ref(f"vllm:{tmp_path}#{tree.short}") == TreeRef("vllm", tmp_path, tree.short)
    assert parse_ref("vllm") is None
    assert parse_ref("prod:2024") is None
    ref = TreeRef("vllm", tmp_path)
    for name in (tree.short, tree.short[:5], tree.long[:12]):
        assert find_entry(replace(ref, id=name)).id == tree.short
    for path in (tree.pieces, tree.aot_folder):
        assert find_entry(TreeRef("vllm", path)).id == tree.short
    with pytest.raises(EntryNotFound):
        find_entry(replace(ref, id="nothing"))
    with pytest.raises(AmbiguousEntry):
        find_entry(ref)


def test_a_tree_is_found_where_vllm_would_keep_it(tmp_path: Path) -> None:
    tree = Vllm(tmp_path / "vllm").write()
    for environ in (
        {"VLLM_CACHE_ROOT": str(tree.root)},
        {"XDG_CACHE_HOME": str(tmp_path)},
        {"VLLM_CACHE_ROOT": str(tmp_path / "nowhere"), "XDG_CACHE_HOME": str(tmp_path)},
    ):
        assert [row.id for row in open_tree(TreeRef("vllm"), environ).rows] == [tree.short]
    assert [row.id for row in open_tree(TreeRef("vllm", tree.root / "torch_compile_cache")).rows] == [
        tree.short
    ]


def test_a_root_in_which_nothing_was_compiled_yet_is_empty(tmp_path: Path) -> None:
    (tmp_path / "modelinfos").mkdir()
    assert READER.scan(tmp_path).rows == ()
