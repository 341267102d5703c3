"""The pass manager: order, counts, what a watcher sees, and how a failing pass is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from graphkiln.core.errors import CompileError
from graphkiln.core.passes.manager import PassManager, load_pass
from graphkiln.core.passes.pipeline import Pipeline
from tests.passes.graphs import names, outcome, traced

X = torch.arange(12, dtype=torch.float32).reshape(3, 4)
MODULE = """
import torch

class SineToCosine:
    def __call__(self, graph):
        found = [node for node in graph.nodes if node.target is torch.ops.aten.sin.default]
        for node in found:
            node.target = torch.ops.aten.cos.default
        return len(found)

def nothing(graph):
    pass

def fails(graph):
    raise KeyError("no such thing")

class NeedsMore:
    def __init__(self, more):
        pass

text = "not a pass"
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pm_passes.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def manager(*user: str, **options: Any) -> Any:
    return PassManager(Pipeline(("eliminate_noops",), user), **options)


def test_every_pass_runs_in_order_and_says_what_it_did() -> None:
    module = traced(lambda x: x.sin().reshape(-1).reshape(x.shape[0], x.shape[1]), X)
    passes = manager("pm_passes:SineToCosine", "pm_passes:nothing")
    assert passes.runs == ()
    passes(module.graph)
    assert [(run.name, run.matches) for run in passes.runs] == [
        ("eliminate_noops", 1),
        ("pm_passes:SineToCosine", 1),
        ("pm_passes:nothing", None),
        # The reshape that nobody reads any more, and two reads of sizes.
        ("cleanup", 3),
        ("fix_functionalization", 0),
    ]
    assert all(run.seconds > 0 for run in passes.runs)
    assert names(module.graph) == ["aten.cos"]
    assert torch.equal(outcome(module, X), X.cos())


def test_the_numbers_of_several_graphs_are_sums() -> None:
    passes = manager("pm_passes:SineToCosine")
    for _ in range(2):
        passes(traced(lambda x: x.sin(), X).graph)
    assert dict((run.name, run.matches) for run in passes.runs)["pm_passes:SineToCosine"] == 2


def test_a_watcher_sees_the_graph_before_and_after_each_pass() -> None:
    seen: list[tuple[str, list[str]]] = []
    passes = manager("pm_passes:SineToCosine", watch=lambda name, graph: seen.append((name, names(graph))))
    passes(traced(lambda x: x.sin(), X).graph)
    assert seen[:3] == [
        ("before", ["aten.sin"]),
        ("eliminate_noops", ["aten.sin"]),
        ("pm_passes:SineToCosine", ["aten.cos"]),
    ]


def test_a_pass_that_the_process_had_set_runs_last() -> None:
    seen: list[fx.Graph] = []
    module = traced(lambda x: x.sin(), X)
    manager(last=[seen.append])(module.graph)
    assert seen == [module.graph]


def test_a_pass_that_fails_is_named() -> None:
    with pytest.raises(CompileError, match="pass pm_passes:fails: KeyError: 'no such thing'"):
        manager("pm_passes:fails")(traced(lambda x: x.sin(), X).graph)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("pm_absent:x", "cannot be imported: ModuleNotFoundError"),
        ("pm_passes:absent", "cannot be imported: AttributeError"),
        ("pm_passes:NeedsMore", "cannot be imported: TypeError"),
        ("pm_passes:text", "a str cannot be called"),
    ],
)
def test_a_pass_that_cannot_be_made_is_named(where: str, message: str) -> None:
    with pytest.raises(CompileError, match=f"pass {where}: .*{message}"):
        load_pass(where, where)
