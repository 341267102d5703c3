"""Imports point one way, cli -> core -> cache, and torch is imported inside core only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules(part: str) -> list[Path]:
    return sorted((ROOT / part).rglob("*.py"))


def imported(path: Path, *, late: bool) -> Iterator[str]:
    """Yields the full name of everything that `path` imports; with `late` False only when it is imported."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if (is_function or is_for_types_only(node)) and not late:
            continue
        pending += ast.iter_child_nodes(node)


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def breaches(part: str, *packages: str, late: bool = True) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(part)
        for name in imported(path, late=late)
        if under(name, *packages)
    ]


def test_cache_imports_neither_torch_nor_the_floors_above() -> None:
    assert breaches("cache", "torch", "transformers", "numpy", "graphkiln.core", "graphkiln.cli") == []


def test_core_never_imports_cli() -> None:
    assert breaches("core", "graphkiln.cli", "typer", "rich") == []


def test_cli_imports_no_torch_and_core_only_late() -> None:
    assert breaches("cli", "torch", "transformers", "numpy") == []
    assert breaches("cli", "graphkiln.core", late=False) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["precompile", "--help"],
        ["--version"],
        ["cache", "ls"],
        ["cache", "ls", "--filter", "compiler.torch!=2.13.0"],
        ["cache", "inspect", "none"],
        ["cache", "diff", "none", "either"],
    ],
    ids=" ".join,
)
def test_no_torch_on_the_way_to_help_or_a_cache_command(words: list[str]) -> None:
    code = (
        "import sys; from graphkiln.cli.app import main; main(sys.argv[1:]);"
        "slow = {'torch', 'transformers', 'numpy', 'safetensors', 'graphkiln.core'};"
        "print('imported:', sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


CACHE_COMMANDS = (
    "ls", "ls --filter compiler.torch~2", "inspect {}", "diff {} {}", "verify", "verify {}", "restore",
    "prune --superseded --broken", "prune --older-than 1d --stale env", "starts", "dir", "size",
    "pin {}", "unpin {}", "label {} prod", "rm {} --yes",
)  # fmt: skip


def test_no_cache_command_imports_torch_or_runs_anything_of_an_entry(tmp_path: Path) -> None:
    from tests.cache.inspect.made import cache_at, make_entry

    marker = tmp_path / "marker"
    planted = f"open({str(marker)!r}, 'w')\n"
    entry = make_entry(cache_at(tmp_path / "root"), wrapper=planted, graph=planted, source=planted)
    lines = [f"cache {command}".replace("{}", entry.short) for command in CACHE_COMMANDS]
    code = (
        "import sys; from graphkiln.cli.app import main\n"
        "slow = {'torch', 'transformers', 'numpy', 'safetensors', 'graphkiln.core', 'pickle'}\n"
        "before = set(sys.modules)\n"
        "for line in sys.argv[2:]:\n"
        "    status = main([*line.split(), '--cache-root', sys.argv[1], '-q'])\n"
        "    new = sorted(slow & set(sys.modules) - before)\n"
        "    print('result:', line, status, new)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "root"), *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    results = [line for line in done.stdout.splitlines() if line.startswith("result:")]
    # The planted path is told by verify, which makes it no.
    wanted = [f"result: {line} {1 if line.startswith('cache verify') else 0} []" for line in lines]
    assert results == wanted, done.stderr
    assert not marker.exists()
