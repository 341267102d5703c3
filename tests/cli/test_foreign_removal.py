"""Entries of a foreign tree are removed by rule or by name, after a plan."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.cli.conftest import Run
from tests.layouts.trees import Vllm


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


def test_an_entry_is_removed_by_the_path_of_its_folder(tree: Vllm, run: Callable[..., Run]) -> None:
    assert run("cache", "rm", "--yes", f"vllm:{tree.pieces}").status == 0
    assert not tree.model.exists()
