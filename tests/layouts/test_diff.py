"""`diff` of foreign entries names each single change, with both values, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.inspect.diff import DIFFERENT, OTHER_BUILD, SAME, UNKNOWN, EntryDiff
from graphkiln.cache.layouts.diff import HASH_ONLY, diff_foreign
from graphkiln.cache.layouts.found import ForeignAccount
from graphkiln.cache.layouts.readers import TreeRef, find_entry
from tests.layouts import trees
from tests.layouts.trees import SOURCE, Vllm, triton_kernel

MEGA, AOT = "VLLM_USE_MEGA_AOT_ARTIFACT", "VLLM_USE_AOT_COMPILE"
STANDALONE, DISABLE = "VLLM_USE_STANDALONE_COMPILE", "VLLM_DISABLE_COMPILE_CACHE"
# By tree: the factors that differ from the base, and every cause with both values where it has them.
DOCUMENTED: dict[str, tuple[set[str], list[tuple[str, str, Any, Any]]]] = {
    "s01-base": (set(), []),
    "m01-env": ({"env"}, [("env", "VLLM_XGRAMMAR_CACHE_MB", 512, 256)]),
    "m02-max-batched-tokens": ({"config"}, [("config", "max_num_batched_tokens", 512, 256)]),
    "m03-max-num-seqs": ({"config"}, [("config", HASH_ONLY, "2eb8d8bcce", "b154a31cfa")]),
    "m04-bfloat16": ({"config", "code"}, [("config", "dtype", "float32", "bfloat16")]),
    "m07-mega-off": ({"env", "compiler"}, [("env", MEGA, True, False)]),
    "m08-aot-off": ({"env", "compiler"}, [("env", AOT, True, False), ("env", MEGA, True, False)]),
    "m09-standalone-off": (
        {"env", "compiler"},
        [("env", AOT, True, False), ("env", MEGA, True, False), ("env", STANDALONE, True, False)],
    ),
    "m12-source-edit#b6acb3a111": (
        {"code"}, [("code", "file vllm.model_executor.models.llama", "as in A", "another text")],
    ),
    "m14-cache-disabled": ({"env", "compiler"}, [("env", DISABLE, False, True)]),
    "m16-model-moved": ({"config"}, [("config", HASH_ONLY, "2eb8d8bcce", None)]),
    "m17-tp2": (
        {"env", "config", "code"},
        [("config", "ranks", 1, 2), ("env", "VLLM_CPU_OMP_THREADS_BIND", None, None)],
    ),
    "k01-killed": (set(), []),
}  # fmt: skip


def entry(root: Path, name: str = "") -> ForeignAccount:
    row = find_entry(TreeRef("vllm", root, name))
    found: ForeignAccount = row.reader.account(row)
    return found


@pytest.mark.parametrize("name", DOCUMENTED)
def test_each_documented_change_is_named_and_nothing_else(name: str, unpacked: Callable[[str], Path]) -> None:
    tree, _, short = name.partition("#")
    factors, causes = DOCUMENTED[name]
    found = diff_foreign(entry(unpacked("s01-base")), entry(unpacked(tree), short))
    assert {factor for factor, same in found.same.items() if not same} == factors
    assert found.verdict == (DIFFERENT if factors else SAME)
    told = [(one.difference.factor, one.difference.name) for one in found.causes]
    assert told == [(factor, name) for factor, name, _, _ in causes]
    for cause, (_, _, then, now) in zip(found.causes, causes, strict=True):
        assert then is None or cause.difference.then == then
        assert now is None or cause.difference.now == now
        assert cause.difference.remedy or cause.difference.name == HASH_ONLY
        # What follows is of factors that differ, never of one whose hashes agree.
        assert {one.factor for one in cause.consequences} <= factors | {"build"}
    if "env" in factors:
        named = {one.difference.name for one in found.causes} | {
            one.name for cause in found.causes for one in cause.consequences
        }
        assert {name for name in (AOT, MEGA, STANDALONE, DISABLE) if name in named} == {
            name
            for name in (AOT, MEGA, STANDALONE, DISABLE)
            if entry(unpacked("s01-base")).factors["env"][name]
            != entry(unpacked(tree), short).factors["env"][name]
        }


def test_every_pair_of_a_real_root_differs_where_its_hashes_do(unpacked: Callable[[str], Path]) -> None:
    root = unpacked("multi")
    ids = ["0cde887539", "4a8c89dcd1", "74f21e6911", "a41f1c5c53", "db02db82f9"]
    accounts = [entry(root, name) for name in ids]
    for a in accounts:
        for b in accounts:
            found = diff_foreign(a, b)
            differing = {name for name in a.hashes if a.hashes[name] != b.hashes[name]}
            assert {name for name, same in found.same.items() if not same} == differing
            causes = [one.difference.factor for one in found.causes]
            assert bool(differing) is bool(causes)
            assert set(causes) <= differing


def made(root: Path, **changes: Any) -> EntryDiff:
    one = Vllm(root / "a").write()
    other = Vllm(root / "b", **changes).write()
    return diff_foreign(entry(one.root), entry(other.root))


def test_the_lines_of_an_edited_file_are_shown(tmp_path: Path) -> None:
    found = made(tmp_path, source=SOURCE.replace("x + 1", "x + 2"))
    [cause] = found.causes
    assert cause.difference.name == "file toy.models.tiny"
    [lines] = found.modules
    assert "+    return x + 2" in lines.lines


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", 5700,
         "give each pod the same value (set VLLM_NIXL_SIDE_CHANNEL_PORT=5600)"),
        ("VLLM_LOOPBACK_IP", "10.0.0.7", "give each pod the same value (unset VLLM_LOOPBACK_IP)"),
        ("VLLM_DP_RANK", 3, "start workers without it (unset VLLM_DP_RANK)"),
        ("VLLM_RAY_BUNDLE_INDICES", "0,1", "start workers without it"),
        ("VLLM_IMAGE_TAG", "v2", "leave it out of the image"),
        ("VLLM_LORA_RESOLVER_CACHE_DIR", "/tmp/x1", "use one fixed path in every start"),
        ("VLLM_ENGINE_READY_TIMEOUT_S", 900, "unset VLLM_ENGINE_READY_TIMEOUT_S"),
    ],
)  # fmt: skip
def test_a_variable_that_cannot_change_code_is_told_with_the_launch_change(
    variable: str, value: Any, remedy: str, tmp_path: Path
) -> None:
    [cause] = made(tmp_path, env={variable: value}).causes
    assert (cause.difference.name, cause.difference.relevant) == (variable, False)
    assert cause.difference.remedy.startswith(remedy)


def test_a_variable_that_may_change_code_is_told_so(tmp_path: Path) -> None:
    [cause] = made(tmp_path, env={"VLLM_USE_TRITON_AWQ": True}).causes
    assert cause.difference.relevant
    assert cause.difference.remedy == "unset VLLM_USE_TRITON_AWQ"


def test_two_builds_of_one_key_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Vllm(tmp_path / "a").write()
    real = trees.compiled
    monkeypatch.setattr(trees, "compiled", lambda number=0: real(number, vectorised=0))
    other = Vllm(tmp_path / "b").write()
    found = diff_foreign(entry(one.root), entry(other.root))
    assert found.verdict == OTHER_BUILD
    assert {difference.name.rpartition(".")[2] for difference in found.build} == {"vectorised kernels"}


def test_without_the_factors_it_is_said_that_they_are_not_stored(tmp_path: Path) -> None:
    one, other = Vllm(tmp_path / "a").write(), Vllm(tmp_path / "b", config="9876543210").write()
    (other.part / "cache_key_factors.json").write_text("{")
    found = diff_foreign(entry(one.root), entry(other.root))
    assert (found.verdict, found.causes) == (UNKNOWN, ())
    assert found.same == {"env": None, "config": None, "code": True, "compiler": None}
    assert "B stores no env, config, compiler factor" in found.notes[-1]


def test_one_factor_alone(tmp_path: Path) -> None:
    one = Vllm(tmp_path / "a").write()
    other = Vllm(tmp_path / "b", config="9876543210", source=SOURCE + "\n# edited\n").write()
    a, b = entry(one.root), entry(other.root)
    assert diff_foreign(a, b, "env").verdict == SAME
    assert [cause.difference.factor for cause in diff_foreign(a, b, "code").causes] == ["code"]
    assert diff_foreign(a, b, "config").same == {"config": False}


def test_two_kernels_are_compared_by_their_facts(tmp_path: Path) -> None:
    one, other = triton_kernel(tmp_path), triton_kernel(tmp_path, arch=80)
    rows = [find_entry(TreeRef("triton", tmp_path, folder.name)) for folder in (one, other)]
    found = diff_foreign(*(row.reader.account(row) for row in rows))
    assert found.same["compiler"] is False
    assert ("target.arch", 90, 80) in [
        (cause.difference.name, cause.difference.then, cause.difference.now) for cause in found.causes
    ]
