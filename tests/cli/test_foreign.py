"""Trees of other programs under the cache commands: the same words, the same exit status."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.layouts.trees import SOURCE, Vllm, inductor_files, triton_kernel


@pytest.fixture
def tree(tmp_path: Path) -> Vllm:
    return Vllm(tmp_path / "root").write()


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


def test_an_entry_is_removed_by_the_path_of_its_folder(tree: Vllm, run: Callable[..., Run]) -> None:
    assert run("cache", "rm", "--yes", f"vllm:{tree.pieces}").status == 0
    assert not tree.model.exists()


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


class Planted:
    """Unpickling it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def plant(root: Path, marker: Path) -> list[str]:
    """Fill trees with code that would write the marker if anything ran it; return the references."""
    code = f"open({str(marker)!r}, 'w').close()\n"
    bomb = pickle.dumps(Planted(marker))
    trees = [
        Vllm(root / "vllm", source=code + SOURCE).write(),
        Vllm(root / "vllm", mega=False, config="9876543210").write(),
        Vllm(root / "vllm", mega=False, aot=False, config="aaaaaaaaaa").write(),
        Vllm(root / "vllm", mega=False, aot=False, adaptor=True, config="bbbbbbbbbb").write(),
    ]
    trees[1].model.write_bytes(bomb)
    for path in (root / "vllm").rglob("*"):
        if path.is_file() and path.suffix == ".py" and path.name != "vllm_compile_cache.py":
            path.write_text(code)
        elif path.is_file() and ("fxgraph" in path.parts or "aotautograd" in path.parts):
            path.write_bytes(bomb)
    (trees[2].part / "vllm_compile_cache.py").write_text(code)
    (trees[2].part / "artifact_compile_range_1_64_subgraph_0").write_bytes(bomb)
    files = inductor_files(root / "inductor")
    for kind in ("graph", "result"):
        files[kind].write_bytes(bomb)
    files["source"].write_text(code)
    (root / "inductor" / "sitecustomize.py").write_text(code)
    kernel = triton_kernel(root / "triton")
    (kernel / "add_kernel.json").write_bytes(bomb)
    return [f"{layout}:{root / layout}" for layout in ("vllm", "inductor", "triton")]


COMMANDS = (
    "cache ls --layout {}", "cache ls --layout {} --json", "cache ls --layout {} --filter compiler.torch>=2",
    "cache diff {}#{} {}#{} --all", "cache verify {}", "cache verify {} --json", "cache verify --layout {}",
    "cache inspect {}#{} --all", "cache inspect {}#{} --json", "cache prune --layout {} --litter --broken",
    "cache rm {}#{}", "explain --engine {} --env-file environment",
    "explain --engine {} --env-file environment --json",
)  # fmt: skip


def test_nothing_in_a_foreign_tree_is_ever_run(tmp_path: Path, run: Callable[..., Run]) -> None:
    marker = tmp_path / "ran"
    lines = []
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "environment").write_text("VLLM_XGRAMMAR_CACHE_MB=300\n")
    for ref in plant(tmp_path / "trees", marker):
        ids = run("cache", "ls", "--layout", ref, "--ids").out.split()
        assert ids
        for command in COMMANDS:
            lines += [command.replace("{}#{}", f"{ref}#{name}").replace("{}", ref) for name in ids]
    code = (
        "import sys; from graphkiln.cli.app import main\n"
        "statuses = [main([*line.split(' '), '-q']) for line in sys.argv[1:]]\n"
        "slow = {'torch', 'transformers', 'numpy', 'safetensors', 'graphkiln.core', 'vllm', 'triton'}\n"
        "print('result:', sorted(set(statuses)), sorted(slow & set(sys.modules)))\n"
    )
    child = [sys.executable, "-c", code, *dict.fromkeys(lines)]
    done = subprocess.run(child, capture_output=True, text=True, check=True, cwd=tmp_path / "trees")
    # A filter that no row of a layout can answer is bad input; a planted model is of no known version.
    assert done.stdout.splitlines()[-1] == "result: [0, 1, 2, 3] []", done.stderr
    assert "internal error" not in done.stderr
    assert not marker.exists()
    pickle.loads(next((tmp_path / "trees").rglob("add_kernel.json")).read_bytes())
    assert marker.exists()


def test_reading_a_tree_leaves_it_as_it_was(tree: Vllm, run: Callable[..., Run]) -> None:
    def state() -> dict[str, tuple[int, int, int]]:
        found = sorted(tree.root.rglob("*"))
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_mode) for path in found
        }

    before = state()
    for words in (
        ["ls", "--layout", f"vllm:{tree.root}"],
        ["inspect", f"vllm:{tree.root}", "--all"],
        ["verify", f"vllm:{tree.root}"],
    ):
        assert run("cache", *words).status == 0
    assert state() == before


def test_a_tree_behind_a_link_is_read_and_a_link_inside_is_not_followed(
    tree: Vllm, tmp_path: Path, run: Callable[..., Run]
) -> None:
    (tmp_path / "link").symlink_to(tree.root)
    assert run("cache", "verify", f"vllm:{tmp_path / 'link'}").status == 0
    shutil.move(tree.model, tmp_path / "model")
    tree.model.symlink_to(tmp_path / "model")
    done = run("cache", "verify", f"vllm:{tree.root}")
    assert done.status == 1
    assert "no link is followed" in done.out


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


def test_prune_plans_asks_and_removes(tree: Vllm, run: Callable[..., Run]) -> None:
    litter = Vllm(tree.root, disabled=True, config="9876543210").write()
    done = run("cache", "prune", "--layout", f"vllm:{tree.root}", "--litter")
    assert done.status == 0
    assert litter.short in done.out
    assert "left by a run with" in done.out
    assert "nothing was done: this is the plan, --yes carries it out" in done.err
    assert litter.pieces.exists()
    done = run("cache", "prune", "--layout", f"vllm:{tree.root}", "--litter", "--yes", "--json")
    found = json.loads(done.out)
    assert found["removed"]["moved"] == [litter.short]
    assert not litter.pieces.exists()
    assert tree.model.exists()
    assert run("cache", "prune", "--layout", f"vllm:{tree.root}").status == 2
    assert run("cache", "prune", "--layout", f"vllm:{tree.root}", "--stale", "env").status == 2


def test_rm_removes_a_named_entry(tree: Vllm, run: Callable[..., Run]) -> None:
    assert run("cache", "rm", f"vllm:{tree.root}#{tree.short}").status == 0
    assert tree.model.exists()
    assert run("cache", "rm", f"vllm:{tree.root}#{tree.short}", "--yes").status == 0
    assert not tree.model.exists()
    assert run("cache", "ls", "--layout", f"vllm:{tree.root}").out == ""


def as_other_user(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without rights, where this one may become another."""
    from tests.cache.child import UNPRIVILEGED

    # Before the change of user the plan alone is made once: the interpreter may be its owner's only.
    code = (
        "import contextlib, io, os, sys; from graphkiln.cli.app import main\n"
        "plan = [word for word in sys.argv[1:] if word != '--yes']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "    main(plan); import graphkiln.cache.layouts.removal\n"
        f"if os.getuid() == 0: os.setgroups([]); os.setgid({UNPRIVILEGED}); os.setuid({UNPRIVILEGED})\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


def opened_for_another_user(folder: Path) -> None:
    """Let another user read everything below a folder, and nobody write to it."""
    from tests.cache.child import UNPRIVILEGED

    outer = Path(tempfile.gettempdir()).resolve()
    for parent in folder.resolve().parents:
        if parent != outer and parent.is_relative_to(outer):
            parent.chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
        if os.getuid() == 0:
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)


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
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


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
        for path in (tmp_path, *tmp_path.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)


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


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_folder_that_is_no_entry_is_bad_input(command: str, run: Callable[..., Run]) -> None:
    done = run("cache", command, "/etc")
    assert (done.status, done.err.splitlines()[0]) == (2, "error: no entry answers to '/etc'")


def test_explain_compares_an_environment_with_vllms_entries(
    tree: Vllm, tmp_path: Path, run: Callable[..., Run]
) -> None:
    file = tmp_path / "environment"
    file.write_text("VLLM_XGRAMMAR_CACHE_MB=512\n")
    done = run("explain", "--engine", f"vllm:{tree.root}", "--env-file", str(file))
    assert done.status == 0
    assert done.out.split()[:3] == ["hit", "vllm", "for"]
    assert str(file) in done.out
    file.write_text("VLLM_XGRAMMAR_CACHE_MB=300\nVLLM_CACHE_ROOT=" + str(tree.root))
    done = run("explain", "--engine", "vllm", "--env-file", str(file))
    assert done.status == 1
    for text in ("nearest", "env.VLLM_XGRAMMAR_CACHE_MB", "512", "300", "set VLLM_XGRAMMAR_CACHE_MB=512"):
        assert text in done.out
    file.write_text(
        "kind: Pod\nspec:\n  containers:\n  - env: [{name: VLLM_XGRAMMAR_CACHE_MB, valueFrom: {}}]\n"
    )
    assert run("explain", "--engine", f"vllm:{tree.root}", "--env-file", str(file)).status == 3
    found = run("explain", "--engine", f"vllm:{tree.root}", "--env-file", str(file), "--json")
    assert json.loads(found.out)["outcome"] == "unknown"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain"], "missing argument 'MODEL'"),
        (["explain", "--engine", "sglang", "--env-file", "-"], "no engine 'sglang'"),
        (["explain", "preset:llama", "--engine", "vllm"], "--engine takes no MODEL"),
        (["explain", "--engine", "vllm:/etc"], "--engine needs one of --env-file and --env-from"),
        (
            ["explain", "--engine", "vllm:/etc", "--env-file", "a", "--env-from", "1"],
            "--engine needs not both",
        ),
        (
            ["explain", "preset:llama", "--env-file", "a"],
            "--env-file, --env-from and --container need an engine",
        ),
        (
            ["explain", "--engine", "vllm", "--env-file", "/nowhere"],
            "no environment can be read from /nowhere",
        ),
    ],
)
def test_explain_of_an_engine_refuses_bad_input(
    words: list[str], sentence: str, run: Callable[..., Run]
) -> None:
    done = run(*words)
    assert (done.status, done.err.startswith(f"error: {sentence}")) == (2, True), done.err
