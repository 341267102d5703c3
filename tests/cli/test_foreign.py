"""Trees of other programs under the cache commands: the same words, the same exit status."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.layouts.trees import Vllm, inductor_files, triton_kernel


def test_ls_lists_filters_and_sorts(tree: Vllm, run: Callable[..., Run]) -> None:
    other = Vllm(tree.root, config="9876543210", dtype="bfloat16", at=tree.at + 5000).write()
    done = run("cache", "ls", "--layout", f"vllm:{tree.root}")
    assert done.status == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["id", other.short, tree.short]
    assert done.err.startswith("2 entries, ")
    ids = run("cache", "ls", "--layout", f"vllm:{tree.root}", "--ids", "--filter", "dtype=bfloat16")
    assert ids.out == f"{other.short}\n"
    found = json.loads(run("cache", "ls", "--layout", f"vllm:{tree.root}", "--json").out)
    assert found["root"] == str(tree.root / "torch_compile_cache")
    assert [(row["id"], row["hits"], row["status"]) for row in found["entries"]] == [
        (other.short, None, ["sound"]),
        (tree.short, None, ["sound"]),
    ]
    # As everywhere, --cache-root says where; without it the usual place is looked at.
    assert run("cache", "ls", "--layout", "vllm", "--ids", "--cache-root", str(tree.root)).out.split() == [
        other.short, tree.short,
    ]  # fmt: skip


def test_the_usual_place_is_found(
    tree: Vllm, run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tree.root))
    assert run("cache", "ls", "--layout", "vllm", "--ids").out == f"{tree.short}\n"
    assert run("cache", "inspect", f"vllm:#{tree.short}").status == 0
    assert run("cache", "verify", "--layout", "vllm").status == 0


def test_inspect_shows_what_is_recovered_and_what_is_not_stored(tree: Vllm, run: Callable[..., Run]) -> None:
    done = run("cache", "inspect", f"vllm:{tree.root}")
    assert done.status == 0
    for text in (tree.short, tree.long[:10], "mega AOT", "Tiny float32 for cpu", "sources in model", "1..64",
                 "of the config only a hash is stored", "torch 2.13.0", "7 values"):  # fmt: skip
        assert text in done.out, text
    assert all(len(line) <= 80 or "/" in line for line in done.out.splitlines())
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" in run("cache", "inspect", f"vllm:{tree.root}", "--factors").out
    assert "class Tiny" in run("cache", "inspect", f"vllm:{tree.root}", "--source").out
    assert "class submod_2" in run("cache", "inspect", f"vllm:{tree.root}", "--graphs").out
    found = json.loads(run("cache", "inspect", f"vllm:{tree.root}", "--json").out)
    assert (found["id"], found["form"], found["faults"]) == (tree.short, "mega AOT", [])
    assert found["hashes"]["code"] == tree.code


def test_verify_tells_what_vllm_would_do(tree: Vllm, run: Callable[..., Run]) -> None:
    assert run("cache", "verify", f"vllm:{tree.root}").status == 0
    tree.model.write_bytes(tree.model.read_bytes()[:500])
    done = run("cache", "verify", f"vllm:{tree.root}#{tree.short}")
    assert done.status == 1
    assert done.out.splitlines()[0] == f"{tree.short} is broken"
    assert "vLLM warns of a load failure, recompiles and" in done.out
    [entry] = json.loads(run("cache", "verify", "--layout", f"vllm:{tree.root}", "--json").out)["entries"]
    assert entry["faults"][0]["effect"] == "vLLM warns of a load failure, recompiles and overwrites it"
    assert run("cache", "inspect", f"vllm:{tree.root}").status == 1


def test_inspect_never_calls_sound_what_every_byte_tells_to_be_broken(
    tree: Vllm, run: Callable[..., Run]
) -> None:
    source = next(path for path in sorted(tree.aot_folder.rglob("c*.py")))
    source.write_text("# edited\n")
    assert " sound" in run("cache", "ls", "--layout", f"vllm:{tree.root}").out
    done = run("cache", "inspect", f"vllm:{tree.root}")
    name = f"torch_aot_compile/{tree.long[:10]}/{source.relative_to(tree.aot_folder)}"
    lines = " ".join(done.out.split())
    assert done.status == 1
    assert f"status broken: {name}: digest" in lines
    assert "sound no, 1 fault" in lines
    assert json.loads(run("cache", "inspect", f"vllm:{tree.root}", "--json").out)["status"] == ["broken"]


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize(
    "place", ["torch_compile_cache/0123456789", "torch_compile_cache/torch_aot_compile/" + "a" * 64]
)
def test_what_stands_where_a_folder_should_is_named_and_left_alone(
    place: str, kind: str, tree: Vllm, tmp_path: Path, run: Callable[..., Run]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    path = tree.root / place
    if kind == "file":
        path.write_text("text")
    else:
        path.symlink_to(tmp_path / "elsewhere")
    layout = f"vllm:{tree.root}"
    done = run("cache", "verify", "--layout", layout)
    assert done.status == 1
    assert f"{path.name[:10]} is broken" in done.out
    assert f"a {kind} stands where a folder should be" in " ".join(done.out.split())
    rows = json.loads(run("cache", "ls", "--layout", layout, "--json").out)["entries"]
    assert {row["id"]: row["status"] for row in rows} == {
        tree.short: ["sound"], path.name[:10]: ["broken"],
    }  # fmt: skip
    for rule in ("--broken", "--litter"):
        assert run("cache", "prune", "--layout", layout, rule, "--yes").status == 0
        assert os.path.lexists(path)
    # Whoever names it gets rid of it, and of nothing behind it.
    assert run("cache", "rm", f"{layout}#{path.name}", "--yes").status == 0
    assert not os.path.lexists(path)
    assert (tmp_path / "elsewhere" / "kept").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_in_the_place_of_all_aot_folders_is_not_followed(
    kind: str, tree: Vllm, tmp_path: Path, run: Callable[..., Run]
) -> None:
    aot = tree.aot_folder.parent
    aot.rename(tmp_path / "elsewhere")
    if kind == "file":
        aot.write_text("text")
    else:
        aot.symlink_to(tmp_path / "elsewhere")
    layout = f"vllm:{tree.root}"
    done = run("cache", "verify", "--layout", layout)
    assert (done.status, f"{tree.short} is unknown" in done.out) == (3, True)
    assert "a link or a file stands there" in " ".join(done.out.split())
    for rule in (["--litter"], ["--max-size", "0"], ["--older-than", "1d"]):
        assert "freed" not in run("cache", "prune", "--layout", layout, *rule, "--yes").out
    assert tree.pieces.exists()
    assert (tmp_path / "elsewhere" / tree.long / "rank_0_0" / "model").exists()


@pytest.mark.parametrize("name", ["rank_0_0/model", "inductor_cache/pipe"])
def test_a_pipe_in_a_tree_is_no_link_and_holds_nobody_up(
    name: str, tree: Vllm, run: Callable[..., Run]
) -> None:
    path = tree.aot_folder / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for command in ("ls", "verify"):
        done = run("cache", command, "--layout", f"vllm:{tree.root}")
    assert done.status == 1
    assert "not a regular file" in done.out
    assert "link" not in done.out


@pytest.mark.parametrize("label", ["vllm:prod", "triton:a", "inductor:2024"])
def test_a_label_that_reads_as_a_foreign_place_is_refused(
    label: str, tmp_path: Path, run: Callable[..., Run]
) -> None:
    from tests.cache.inspect.made import cache_at, make_entry

    own = make_entry(cache_at(tmp_path / "own"))
    words = ["cache", "label", own.short, "--cache-root", str(tmp_path / "own")]
    done = run(*words, label)
    assert done.status == 2
    assert done.err.startswith(f"error: {label!r} reads as a place in the tree of another program")
    assert run(*words, "prod:2024").status == 0


def test_a_version_that_is_not_known_is_neither_sound_nor_broken(tree: Vllm, run: Callable[..., Run]) -> None:
    (tree.part / "cache_key_factors.json").write_text('{"surprise": 1}')
    done = run("cache", "verify", f"vllm:{tree.root}")
    assert done.status == 3
    assert "holds surprise" in done.out
    assert "unknown" in run("cache", "ls", "--layout", f"vllm:{tree.root}").out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ls", "--layout", "vlm"], "no layout 'vlm'; did you mean vllm"),
        (["ls", "--layout", "vllm:/nowhere/at/all"], "/nowhere/at/all is no vllm cache of a known version"),
        (["ls", "--layout", "vllm:/etc"], "/etc is no vllm cache of a known version: it holds "),
        (["ls", "--layout", "vllm:/etc#abc"], "--layout names a whole tree, not abc"),
        (["inspect", "triton:/etc#abc"], "/etc is no triton cache of a known version"),
        (["inspect", "vllm:{root}#nothing"], "no entry answers to 'vllm:{root}#nothing'"),
        (["verify", "vllm:{root}#nothing"], "no entry answers to"),
        (["verify", "vllm:{root}", "--repair"], "--repair and --smoke are for"),
        (["verify", "abc", "--layout", "vllm:{root}"], "--layout names a whole tree"),
        # What a shell makes of "vllm:DIR#$ID" where ID is not set.
        (["rm", "--yes", "vllm:{root}#"], "no id after # in 'vllm:{root}#'"),
        (["rm", "--yes", "vllm:{root}# "], "no id after #"),
        (["rm", "--yes", "vllm:{root}"], "vllm:{root} names a whole tree"),
        (["pin", "vllm:{root}#74f2"], "cache pin is for entries of graphkiln"),
        (["unpin", "vllm:{root}#74f2"], "cache unpin is for entries of graphkiln"),
        (["label", "vllm:{root}#74f2", "prod"], "cache label is for entries of graphkiln"),
        (["restore", "vllm:{root}#74f2"], "cache restore is for entries of graphkiln"),
        (["inspect", "vllm:{root}#"], "no id after #"),
        (["verify", "vllm:{root}#"], "no id after #"),
        (["diff", "vllm:{root}", "vllm:{root}#"], "no id after #"),
        (["ls", "--layout", "vllm:{root}#"], "no id after #"),
        (["prune", "--litter", "--yes", "--layout", "vllm:{root}#"], "no id after #"),
    ],
)
def test_bad_references_are_bad_input(
    words: list[str], sentence: str, tree: Vllm, run: Callable[..., Run]
) -> None:
    done = run("cache", *(word.format(root=tree.root) for word in words))
    assert done.status == 2
    assert done.err.startswith(f"error: {sentence.format(root=tree.root)}")
    assert tree.model.exists()


@pytest.mark.parametrize("name", ["#nothing", "#"])
def test_the_hint_lists_the_tree_that_was_named(name: str, tree: Vllm, run: Callable[..., Run]) -> None:
    done = run("cache", "rm", f"vllm:{tree.root}{name}")
    assert f"graphkiln cache ls --layout vllm:{tree.root} lists " in done.err


def test_inductor_and_triton_folders_are_listed_and_checked(tmp_path: Path, run: Callable[..., Run]) -> None:
    inductor_files(tmp_path / "inductor")
    folder = triton_kernel(tmp_path / "triton")
    for layout, count in (("inductor", 3), ("triton", 1)):
        ids = run("cache", "ls", "--layout", f"{layout}:{tmp_path / layout}", "--ids").out.split()
        assert len(ids) == count
        assert run("cache", "verify", "--layout", f"{layout}:{tmp_path / layout}").status == 0
        for name in ids:
            assert run("cache", "inspect", f"{layout}:{tmp_path / layout}#{name}", "--all").status == 0
    (folder / "add_kernel.cubin").write_bytes(b"")
    assert run("cache", "verify", f"triton:{tmp_path / 'triton'}").status == 1


def test_diff_names_the_variable_and_what_to_change(
    tree: Vllm, tmp_path: Path, run: Callable[..., Run]
) -> None:
    other = Vllm(tmp_path / "other", env={"VLLM_NIXL_SIDE_CHANNEL_PORT": 5700}).write()
    done = run("cache", "diff", f"vllm:{tree.root}", f"vllm:{other.root}#{other.short}")
    assert done.status == 1
    for text in ("env.VLLM_NIXL_SIDE_CHANNEL_PORT", "5600", "5700", "cannot change generated code",
                 "give each pod the same value"):  # fmt: skip
        assert text in done.out
    assert run("cache", "diff", f"vllm:{tree.root}", f"vllm:{tree.root}").status == 0
    assert run("cache", "diff", f"vllm:{tree.root}", f"vllm:{other.root}", "--factor", "code").status == 0
    found = json.loads(run("cache", "diff", f"vllm:{tree.root}", f"vllm:{other.root}", "--json").out)
    assert (found["verdict"], found["same"]["env"], found["same"]["config"]) == ("different", False, True)
    done = run("cache", "diff", f"vllm:{tree.root}", "abc")
    assert (done.status, done.err.splitlines()[0]) == (
        2, "error: entries of graphkiln and vllm cannot be compared",
    )  # fmt: skip


def test_diff_without_stored_factors_cannot_be_known(
    tree: Vllm, tmp_path: Path, run: Callable[..., Run]
) -> None:
    other = Vllm(tmp_path / "other").write()
    (other.part / "cache_key_factors.json").write_text("{")
    done = run("cache", "diff", f"vllm:{tree.root}", f"vllm:{other.root}")
    assert done.status == 3
    assert "not stored" in done.out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_folder_that_is_no_entry_is_bad_input(command: str, run: Callable[..., Run]) -> None:
    done = run("cache", command, "/etc")
    assert (done.status, done.err.splitlines()[0]) == (2, "error: no entry answers to '/etc'")
