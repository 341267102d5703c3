"""Damage of every kind, each told at its file with what the program would do, on made and on real trees."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.layouts.found import ForeignFault, ForeignVerdict
from graphkiln.cache.layouts.vllm.reader import VllmReader
from tests.layouts.conftest import unpack
from tests.layouts.trees import Vllm, artifact, compiled, library

READER = VllmReader()
Damage = Callable[[Path], None]


def verdict_of(root: Path) -> ForeignVerdict:
    [row] = READER.scan(root).rows
    return READER.verify(row)  # type: ignore[arg-type]


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def gone(path: Path) -> None:
    path.unlink()


def linked(path: Path) -> None:
    shutil.move(path, path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def held(data: bytes) -> Damage:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


FACTORS, GRAPH = "cache_key_factors.json", "computation_graph.py"
SOURCES = "inductor_cache/*/c*.py"
INDEX, ARTIFACT = "vllm_compile_cache.py", "artifact_compile_range_1_64_subgraph_2"
MEGA: dict[str, Any] = {}
OFF: dict[str, Any] = {"mega": False, "aot": False}
# form, file (a pattern below the root), damage, kind, how the effect begins
TABLE: list[tuple[dict[str, Any], str, Damage, str, str]] = [
    (MEGA, FACTORS, half, "schema", "no effect"),
    (MEGA, FACTORS, empty, "schema", "no effect"),
    (MEGA, GRAPH, empty, "size", "no effect"),
    (MEGA, "model", half, "unreadable", "vLLM warns of a load failure, recompiles and overwrites"),
    (MEGA, "model", empty, "unreadable", "vLLM warns of a load failure"),
    (MEGA, "model", linked, "symlink", "vLLM"),
    (MEGA, "c*.main.so", half, "size", "the process dies with SIGBUS"),
    (MEGA, "c*.main.so", empty, "size", "the start fails"),
    (MEGA, "c*.main.so", held(b"text"), "unreadable", "the start fails"),
    (MEGA, f"c{'b' * 51}.so", empty, "size", "no message: kernels are compiled without vectors"),
    (MEGA, SOURCES, held(b"def call(:\n"), "digest", "the start fails with SyntaxError, again at each start"),
    (MEGA, SOURCES, held(b"other = 1\n"), "digest", "vLLM runs it as it stands"),
    (MEGA, "fxgraph/*/f*/*", flip, "digest", "torch warns and recompiles"),
    (MEGA, "aotautograd/a*/*", empty, "size", "torch warns and recompiles"),
    (MEGA, SOURCES, linked, "symlink", "vLLM follows it"),
    (OFF, INDEX, half, "unreadable", "the start fails with SyntaxError, again at each start"),
    (OFF, INDEX, empty, "unreadable", "the start fails with SyntaxError"),
    (OFF, INDEX, held(b"[1, 2]"), "schema", "vLLM takes it for a miss"),
    (OFF, INDEX, held(b"{1: 2}"), "schema", "vLLM takes it for a miss"),
    (OFF, INDEX, held(b"{((1, 64), 0, 'other'): {'cache_key': None, 'graph_handle': ('a', 'b')}}"), "version",
     "not known"),
    (OFF, INDEX, held(b"__import__('os').getcwd()"), "unreadable", "the start fails"),
    (OFF, INDEX, gone, "extra", "no effect"),
    (OFF, ARTIFACT, flip, "digest", "the start fails with RuntimeError (checksum), again at each start"),
    (OFF, ARTIFACT, half, "digest", "the start fails with RuntimeError"),
    (OFF, ARTIFACT, empty, "size", "the start fails"),
    (OFF, ARTIFACT, gone, "missing", "the start fails"),
    (OFF, ARTIFACT, held(artifact("akey", compiled(), version=2)), "version", "not known"),
    (OFF, ARTIFACT, held(artifact("akey", compiled(), torch_key=b"\2" * 32)), "schema", "torch refuses it"),
    (OFF, ARTIFACT, held(artifact("akey", b"no pickle")), "unreadable", "the start fails"),
    ({"adaptor": True, **OFF}, "fxgraph/*/f*/*", gone, "missing", "the start fails"),
    ({"adaptor": True, **OFF}, SOURCES, gone, "missing", "the start fails"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "file", "damage", "kind", "effect"), TABLE)
def test_damage_is_told_at_its_file_with_what_follows(
    form: dict[str, Any], file: str, damage: Damage, kind: str, effect: str, tmp_path: Path
) -> None:
    Vllm(tmp_path, **form).write()
    assert verdict_of(tmp_path).faults == ()
    path = next(path for path in sorted(tmp_path.rglob(file)) if path.is_file())
    damage(path)
    found = [fault for fault in verdict_of(tmp_path).faults if isinstance(fault, ForeignFault)]
    # Every artifact that no index names is a fault of its own.
    assert {fault.kind for fault in found} == {kind}, found
    assert all(fault.effect.startswith(effect) for fault in found), found
    assert verdict_of(tmp_path).status == ("unknown" if kind == "version" else "broken")


def test_an_unpacked_artifact_without_a_graph_is_hollow(tmp_path: Path) -> None:
    tree = Vllm(tmp_path, aot=False, mega=False, unpacked=True).write()
    shutil.rmtree(tree.part / ARTIFACT / "fxgraph")
    [fault] = verdict_of(tmp_path).faults
    assert (fault.kind, fault.file.rpartition("/")[2]) == ("hollow", ARTIFACT)


def test_a_changed_artifact_in_a_model_is_told_by_its_digest(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    data = tree.model.read_bytes()
    changed = data.replace(b"# kernel of piece 0", b"# kernel 0f piece 0")
    assert changed != data
    tree.model.write_bytes(changed)
    [fault] = verdict_of(tmp_path).faults
    assert isinstance(fault, ForeignFault)
    assert "submod_0_(1, 64)" in fault.detail
    assert "its generated source is another one" in fault.detail
    assert fault.effect == "vLLM loads it without complaint"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b"return x + 1", b"return x + 2", "toy.models.tiny, lines 6-7"),
        (b"class Tiny:", b"class Tin2:", "code hash"),
    ],
    ids=["in a traced function", "beside them"],
)
def test_a_changed_source_in_a_model_is_told(before: bytes, after: bytes, told: str, tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    data = tree.model.read_bytes()
    assert before in data
    tree.model.write_bytes(data.replace(before, after))
    faults = verdict_of(tmp_path).faults
    assert any(told in fault.detail for fault in faults), faults


def test_a_library_is_whole_when_all_that_is_mapped_lies_in_it(tmp_path: Path) -> None:
    Vllm(tmp_path).write()
    path = next(tmp_path.rglob("c*.main.so"))
    path.write_bytes(library(4096)[:4095])
    assert [fault.detail for fault in verdict_of(tmp_path).faults] == ["cut off: 4095 bytes of at least 4096"]


REAL_DAMAGE = {
    "damaged-model-half": [("rank_0_0/model", "unreadable", "vLLM warns of a load failure, recompiles")],
    "damaged-model-deleted": [
        ("rank_*/model", "missing", "vLLM recompiles without a word"),
        (".", "hollow", ""),
    ],
    "damaged-model-flip-source": [("rank_0_0/model", "digest", "vLLM warns that source code has changed")],
    "damaged-model-flip-cpptext": [("rank_0_0/model", "digest", "vLLM loads it without complaint")],
    "damaged-so-truncated": [(".main.so", "size", "the process dies with SIGBUS")],
    "damaged-wrapper-py-truncated": [(".py", "digest", "the start fails with SyntaxError")],
    "damaged-factors-json-broken": [("cache_key_factors.json", "schema", "no effect")],
    "damaged-hash-folder-deleted": [],
    "damaged-aotoff-index-truncated": [
        ("vllm_compile_cache.py", "unreadable", "the start fails with SyntaxError")
    ],
    "damaged-aotoff-artifact-bitflip": [("subgraph_1", "digest", "the start fails with RuntimeError")],
    "damaged-megaoff-artifact-deleted": [("subgraph_1", "missing", "the start fails, again at each start")],
    "k01-killed": [(".so", "size", "no message"), ("rank_*/model", "missing", ""), (".", "hollow", "")],
}


@pytest.mark.parametrize("name", REAL_DAMAGE)
def test_real_damage_is_told_as_it_was_seen(name: str, unpacked: Callable[[str], Path]) -> None:
    found = list(verdict_of(unpacked(name)).faults)
    for ending, kind, effect in REAL_DAMAGE[name]:
        fault = next(one for one in found if one.file.endswith(ending) and one.kind == kind)
        assert isinstance(fault, ForeignFault)
        assert fault.effect.startswith(effect)
        found.remove(fault)
    assert found == []


@pytest.mark.parametrize("damage", [half, empty, flip, gone], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["s01-base", "m07-mega-off", "m09-standalone-off"])
def test_damage_of_any_file_of_a_real_tree_never_ends_a_command(
    name: str, damage: Damage, tmp_path: Path
) -> None:
    root = unpack(name, tmp_path)
    for path in [path for path in sorted(root.rglob("torch_compile_cache/**/*")) if path.is_file()]:
        if not path.stat().st_size or (damage is not gone and path.suffix in (".cpp", ".json")):
            continue
        data = path.read_bytes()
        damage(path)
        rows = READER.scan(root).rows
        verdicts = [READER.verify(row) for row in rows]  # type: ignore[arg-type]
        for row in rows:
            READER.account(row)  # type: ignore[arg-type]
        # Text of the graph and generated C++ carry no digest; a library only has to be whole; and what is
        # gone altogether is told where something names it.
        checked = path.suffix not in (".so", ".cpp") and path.name != GRAPH
        if (damage is flip and checked) or (damage in (half, empty) and path.name != GRAPH):
            assert any(verdict.faults for verdict in verdicts), path
        path.write_bytes(data)
