"""How little of a vLLM cache a list reads, and that what was read of one entry is taken for no other's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from graphkiln.cache.layouts.found import ForeignRow
from graphkiln.cache.layouts.spans import OpenFile, Span
from graphkiln.cache.layouts.vllm import model, scan
from graphkiln.cache.layouts.vllm.reader import VllmReader
from tests.layouts.trees import SOURCE, Vllm, sha256

READER = VllmReader()
READ = model.read_model
COPIES = 5


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gives the sizes of what is read of files of a tree, as it is read."""
    sizes: list[int] = []
    plain = OpenFile.read

    def counted(file: OpenFile, start: int, size: int) -> bytes:
        sizes.append(size)
        return plain(file, start, size)

    monkeypatch.setattr(OpenFile, "read", counted)
    return sizes


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives a name for each `model` that is looked into for the list."""
    return counted_models(monkeypatch, model)


def counted_models(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """Let each call of a module's `read_model` leave the name that it read; return them."""
    names: list[str] = []

    def counted(source: bytes | Span, name: str) -> model.Model:
        names.append(name)
        return READ(source, name)

    monkeypatch.setattr(module, "read_model", counted)
    return names


def scanned(root: Path) -> dict[str, ForeignRow]:
    return {row.id: row for row in READER.scan(root).rows if isinstance(row, ForeignRow)}


def copied(tree: Vllm, edit: Callable[[bytes], bytes] = bytes) -> str:
    """Copy the AOT folder under another name, its `model` edited; return the name."""
    name = sha256(f"copy {len(list(tree.aot_folder.parent.iterdir()))}")
    place = tree.aot_folder.parent / name
    shutil.copytree(tree.aot_folder, place)
    path = place / tree.model.relative_to(tree.aot_folder)
    path.write_bytes(edit(path.read_bytes()))
    return name


def test_a_list_leaves_graphs_and_artifacts_unread(tmp_path: Path, read: list[int]) -> None:
    tree = Vllm(tmp_path, graph_bytes=2_000_000, source=SOURCE + "# filled\n" * 4000).write()
    row = scanned(tmp_path)[tree.short]
    assert (row.form, row.model, row.unit.aot.name) == ("mega AOT", "Tiny", tree.long)
    assert len(tree.source) < sum(read) < len(tree.source) + 50_000
    read.clear()
    READER.verify(row)
    assert sum(read) > 2_000_000


def test_copies_are_compared_and_not_followed_again(tmp_path: Path, followed: list[str]) -> None:
    tree = Vllm(tmp_path, source=SOURCE + "# filled\n" * 4000).write()
    names = {tree.long, *(copied(tree) for _ in range(COPIES))}
    rows = scanned(tmp_path)
    assert followed == ["rank_0_0/model"]
    assert {row.unit.aot.name for row in rows.values()} == names
    assert {(row.model, row.form, row.health) for row in rows.values()} == {("Tiny", "mega AOT", "sound")}


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        (b"# filled\n", b"# edited\n", "code"),
        (b"forward", b"forwerd", "qualified"),
        (b"StandaloneCompiledArtifacts", b"StandaloneCompiledArtifactz", "mega"),
        (b"2.13.0", b"2.13.1", "versions"),
    ],
)
def test_a_copy_with_one_byte_changed_is_another(
    old: bytes, new: bytes, differs: str, tmp_path: Path, followed: list[str]
) -> None:
    tree = Vllm(tmp_path, source=SOURCE + "# filled\n" * 4000, graph_bytes=9000).write()
    name = copied(tree, lambda data: data.replace(old, new))
    found = {row.unit.aot.name: row.unit.aot.summary for row in scanned(tmp_path).values()}
    assert len(followed) == 2
    assert getattr(found[name], differs) != getattr(found[tree.long], differs)


def test_a_copy_with_another_end_is_no_copy(tmp_path: Path) -> None:
    tree = Vllm(tmp_path, graph_bytes=9000).write()
    name = copied(tree, lambda data: data[:-1] + b"N")
    rows = {row.unit.aot.name: row for row in scanned(tmp_path).values()}
    assert rows[tree.long].health == "sound"
    assert rows[name].health == "broken"
    assert "pickle cut off" in rows[name].fault


def test_of_two_aot_folders_with_the_code_of_one_entry_one_stands_alone(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    name = copied(tree)
    rows = scanned(tmp_path)
    assert len(rows) == 2
    assert {row.unit.aot.name for row in rows.values()} == {tree.long, name}
    # Which one is the entry's only the time tells.
    assert rows[tree.short].guess
    assert rows[tree.short].unit.how.startswith("a guess: 2 AOT folders have its code")


@pytest.mark.parametrize("later", [-500, 500])
def test_of_two_aot_folders_the_one_that_follows_the_factor_file_is_the_entrys(
    later: int, tmp_path: Path
) -> None:
    tree = Vllm(tmp_path).write()
    name = copied(tree)
    other = tree.aot_folder.parent / name / tree.model.relative_to(tree.aot_folder)
    os.utime(other, (tree.at + later, tree.at + later))
    assert scanned(tmp_path)[tree.short].unit.aot.name == tree.long


def test_the_rarer_code_hashes_are_tried_once_for_all_folders_of_one_code(
    tmp_path: Path, followed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Vllm(tmp_path).write()
    for _ in range(COPIES):
        copied(tree)
    shutil.rmtree(tree.pieces)
    Vllm(tmp_path, source=SOURCE + "# another\n", config="9876543210").write()
    whole = counted_models(monkeypatch, scan)
    assert len(scanned(tmp_path)) == COPIES + 2
    assert (len(followed), len(whole)) == (2, 1)
