"""Passes from a start's side: counts in the entry, the debug dump, the structured trace, and the numbers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.store.entries import Entry
from tests.start.children import Child, environment, start
from tests.start.conftest import Compiled, CompiledToy, write_toy

PASSES = """
import torch
import my_rules

class Halves:
    def __call__(self, graph):
        # One rewrite that keeps the numbers, counted.
        products = [node for node in graph.nodes if node.target is torch.ops.aten.mul.Tensor]
        found = [node for node in products if node.args[1] == my_rules.FACTOR]
        for node in found:
            with graph.inserting_before(node):
                half = graph.call_function(node.target, (node.args[0], node.args[1] / 2))
            node.args = (half, 2.0)
        return len(found)

def wrong(graph):
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default

def fails(graph):
    raise KeyError("no such thing")
"""
FILLING = '''
import torch
from torch import nn
from graphkiln.core import support_torch_compile

_library = torch.library.Library("toy_filling", "DEF")
_library.define("fill(Tensor x, Tensor(a!) out) -> ()")

def _fill(x, out):
    out.copy_(x * 2)

def _fill_fake(x, out):
    return None

_library.impl("fill", _fill, "CPU")
torch.library.register_fake("toy_filling::fill", _fill_fake)

@support_torch_compile
class Filling(nn.Module):
    """An op in the middle that fills its output, as attention does, and a reshape there and back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.ops.toy_filling.fill(x.sin(), out)
        return out.cos().reshape(-1).reshape(x.shape[0], 4) + 1

    def example_inputs(self, count):
        return (torch.arange(count * 4, dtype=torch.float32).reshape(count, 4) / 7,)

def make():
    return Filling()
'''
RULES = "FACTOR = 3.0\n"
MINE = {"inductor_passes": ["my_passes:Halves"]}


@dataclass(frozen=True)
class Passed(Compiled):
    """The toy, precompiled with a pass of the user's, a debug dump and a structured trace."""

    code: Path
    dump: Path
    traces: Path


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Passed:
    folder = tmp_path_factory.mktemp("passes")
    code, dump, traces, root = (folder / name for name in ("code", "dump", "trace", "root"))
    write_toy(code)
    (code / "my_passes.py").write_text(PASSES)
    (code / "my_rules.py").write_text(RULES)
    options = {"cache_root": str(root), "debug_dump": str(dump)}
    environ = environment(PYTHONPATH=str(code), TORCH_TRACE=str(traces))
    child = start("precompile", "toy_model:make", environ=environ, config=MINE, options=options)
    return Passed(root, child, code, dump, traces)


def again(passed: Passed, function: str = "warm", **given: Any) -> Child:
    given = {"config": MINE, **given}
    given["options"] = {"cache_root": str(passed.root), **given.get("options", {})}
    return start(function, "toy_model:make", environ=environment(PYTHONPATH=str(passed.code)), **given)


def test_the_users_pass_ran_and_the_numbers_are_eagers(passed: Passed) -> None:
    assert passed.child.outcome == "compiled"
    assert len(passed.child.report["check"]["rows"]) >= 4
    (piece,) = passed.child.report["passes"]
    assert {run["name"]: run["matches"] for run in piece["passes"]} == {
        "eliminate_noops": 0,
        "my_passes:Halves": 1,
        "cleanup": 0,
        "fix_functionalization": 0,
    }


def test_what_each_pass_did_is_kept_with_the_rank_and_in_no_key(passed: Passed) -> None:
    manifest = Entry(passed.entry).manifest("0_0")
    (piece,) = manifest.specific["passes"]["backbone"]
    assert (piece["piece"], piece["tokens"]) == (0, [1, 2048])
    assert all(run["seconds"] > 0 for run in piece["passes"])
    assert "seconds" not in json.dumps(manifest.build)
    assert "seconds" not in (passed.entry / "factors.json").read_text()


def test_a_start_with_the_same_passes_hits_and_imports_none_of_them(passed: Passed) -> None:
    child = again(passed, options={"require_hit": True})
    assert child.outcome == "hit"
    assert child.report["passes"] == []
    modules = set(child.answer["imported"])
    assert "graphkiln.core.passes.pipeline" in modules
    for name in ("manager", "graphs", "noops", "cleanup", "functionalization"):
        assert f"graphkiln.core.passes.{name}" not in modules
    assert not {"my_passes", "my_rules", "torch._inductor", "torch._dynamo", "sympy"} & modules


def test_a_hit_says_that_its_dump_holds_decisions_only(passed: Passed, tmp_path: Path) -> None:
    child = again(passed, "precompile", options={"debug_dump": str(tmp_path)})
    assert child.outcome == "hit"
    assert any(note.endswith("decisions only, nothing was compiled") for note in child.report["notes"])
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["decisions.txt"]


@pytest.mark.parametrize("module", ["my_passes", "my_rules"])
def test_a_changed_line_in_a_pass_or_its_import_is_a_miss_and_a_comment_is_not(
    passed: Passed, tmp_path: Path, module: str
) -> None:
    changed = Passed(passed.root, passed.child, tmp_path / "code", passed.dump, passed.traces)
    shutil.copytree(passed.code, changed.code)
    file = changed.code / f"{module}.py"
    file.write_text('"""A docstring."""\n# a comment\n' + file.read_text())
    assert again(changed, options={"require_hit": True}).outcome == "hit"
    file.write_text(file.read_text() + "MORE = 1\n")
    assert again(changed, options={"require_hit": True}).outcome == "miss"


def test_the_dump_can_be_read(passed: Passed) -> None:
    (folder,) = passed.dump.iterdir()
    assert folder.name.startswith("toy_model-make-")
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    part, piece = "rank_0_0/backbone", "rank_0_0/backbone/piece_0/tokens_1_2048"
    assert files == [
        "decisions.txt",
        f"{part}/after_split.py",
        f"{part}/before_split.py",
        f"{part}/guards.txt",
        f"{part}/piece_0/graph.py",
        f"{piece}/kernel_0.cpp",
        f"{piece}/passes.txt",
        f"{piece}/passes/0_before.py",
        f"{piece}/passes/2_my_passes-Halves.py",
        f"{piece}/wrapper.py",
    ]
    texts = {name: (folder / name).read_text() for name in files}
    assert "mode: asked None" in texts["decisions.txt"]
    assert str(passed.child.report["key"]) in texts["decisions.txt"]
    assert "sin()" in texts[f"{part}/before_split.py"]
    assert "def piece_0(" in texts[f"{part}/after_split.py"]
    assert "toy_helper:shift" in texts[f"{part}/guards.txt"]
    assert "self._modules['linear']  type = " in texts[f"{part}/guards.txt"]
    assert "my_passes:Halves: 1 changed" in texts[f"{piece}/passes.txt"]
    assert "1.5" in texts[f"{piece}/passes/2_my_passes-Halves.py"]
    assert "at::vec" in texts[f"{piece}/kernel_0.cpp"] or "kernel(" in texts[f"{piece}/kernel_0.cpp"]
    assert "def call(" in texts[f"{piece}/wrapper.py"]
    for name in files:
        if name.endswith(".py"):
            compile(texts[name], name, "exec")


def test_nothing_of_the_dump_is_in_the_entry(passed: Passed) -> None:
    for path in passed.entry.rglob("*"):
        if path.is_file():
            assert str(passed.dump).encode() not in path.read_bytes()


def test_the_structured_trace_shows_split_pieces_and_ranges(passed: Passed) -> None:
    found = artifacts(passed.traces)
    assert sorted(found) == ["graphkiln_pieces", "graphkiln_ranges", "graphkiln_split"]
    assert found["graphkiln_split"]["parts"] == [
        {"name": "submod_0", "piece": 0, "eager": [], "nodes": found["graphkiln_split"]["parts"][0]["nodes"]}
    ]
    (piece,) = found["graphkiln_pieces"]["pieces"]
    assert (piece["parts"], piece["dynamic"], piece["kernels"]) == (["submod_0"], "backed", 1)
    assert piece["passes"]["my_passes:Halves"] == 1
    assert found["graphkiln_ranges"] == {"ranges": [{"smallest": 1, "largest": 2048, "pieces": [0]}]}


def artifacts(folder: Path) -> dict[str, Any]:
    """Returns our artifacts of a trace log by name: a line of JSON, then the payload behind tabs."""
    found: dict[str, Any] = {}
    (file,) = folder.iterdir()
    lines = iter(file.read_text().splitlines())
    waiting: list[str] | None = None
    payloads: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("\t"):
            if waiting is not None:
                waiting.append(line[1:])
            continue
        record = json.loads(line[line.index("{") :])
        name = record.get("artifact", {}).get("name", "")
        waiting = payloads.setdefault(name, []) if name.startswith("graphkiln_") else None
        if waiting is not None:
            # tlparse files an artifact under the trace that it carries.
            assert record["artifact"]["encoding"] == "json"
            assert (record["frame_id"], record["frame_compile_id"]) == (0, 0)
    for name, text in payloads.items():
        found[name] = json.loads("\n".join(text))
    return found


def test_without_a_trace_log_no_payload_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._logging._internal import trace_log

    from graphkiln.core.compile.structured import trace_pieces, trace_ranges

    monkeypatch.setattr(trace_log, "handlers", [])
    asked: list[str] = []

    def payload() -> list[Any]:
        asked.append("asked")
        return []

    trace_pieces(None, payload)
    trace_ranges(None, payload)
    assert asked == []


def test_a_pass_that_changes_the_numbers_publishes_nothing(passed: Passed, tmp_path: Path) -> None:
    config = {"inductor_passes": ["my_passes:wrong"]}
    child = again(passed, "precompile", config=config, options={"cache_root": str(tmp_path)})
    assert child.answer["error"] == "CheckFailed"
    assert not list((tmp_path / "torch_compile_cache").glob("*"))


def test_a_pass_that_fails_ends_the_start_by_its_name(passed: Passed, tmp_path: Path) -> None:
    config = {"inductor_passes": ["my_passes:fails"]}
    child = again(passed, "precompile", config=config, options={"cache_root": str(tmp_path)})
    assert child.answer["error"] == "CompileError"
    assert child.answer["text"] == "pass my_passes:fails: KeyError: 'no such thing'"


@pytest.mark.parametrize("on", [True, False])
def test_an_op_that_fills_its_output_is_in_place_and_right_with_passes_on_and_off(
    tmp_path: Path, on: bool
) -> None:
    (tmp_path / "filling.py").write_text(FILLING)
    given: dict[str, Any] = {
        "environ": environment(PYTHONPATH=str(tmp_path)),
        "config": {"pass_config": {"eliminate_noops": on}},
        "options": {"cache_root": str(tmp_path / "root")},
    }
    child = start("precompile", "filling:make", **given)
    assert child.outcome == "compiled", child.answer
    (piece,) = child.report["passes"]
    matches = {run["name"]: run["matches"] for run in piece["passes"]}
    assert matches["fix_functionalization"] == 1
    assert ("eliminate_noops" in matches) is on
    assert start("warm", "filling:make", **given).outcome == "hit"


def test_with_a_pass_switched_off_the_entry_is_not_found(toy: CompiledToy) -> None:
    environ = environment(PYTHONPATH=str(toy.code))
    config = {"pass_config": {"eliminate_noops": False}}
    options = {"cache_root": str(toy.root)}
    child = start(
        "warm", "toy_model:make", environ=environ, config=config, options={**options, "require_hit": True}
    )
    assert child.outcome == "miss"


def test_the_preset_keeps_counts_of_every_distinct_piece(llama: Compiled) -> None:
    pieces = llama.child.report["passes"]
    assert [piece["piece"] for piece in pieces] == [0, 1, 2]
    assert all(len(piece["passes"]) == 3 for piece in pieces)
    assert sum(run["matches"] for piece in pieces for run in piece["passes"]) > 0
