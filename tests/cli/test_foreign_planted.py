"""Whatever lies in a foreign tree, it is only read: nothing of it runs, nothing of it changes."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import Run
from tests.layouts.trees import SOURCE, Vllm, inductor_files, triton_kernel


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
