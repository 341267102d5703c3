"""Starts from the AOT file: what they read, what they refuse and by which name, and what heals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.core.aot_use import aot_use
from graphkiln.core.compile.sealed import load_piece
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import AotRefused
from graphkiln.core.fetching import FetchedArtifact
from graphkiln.core.judging import judge
from graphkiln.core.plan import Plan, make_plan
from graphkiln.core.start import load_model, warm
from tests.start.aot_files import Counting, changed, opened, packed, self_contained, taken_apart
from tests.start.children import environment, start
from tests.start.conftest import Compiled, CompiledToy

TOY = Deployment("toy_model:make")
INPUTS = torch.arange(12, dtype=torch.float32).reshape(3, 4)
NOBODY = 65533


@pytest.fixture
def root(toy: CompiledToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(toy.code))
    shutil.copytree(toy.root, tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def file(toy: CompiledToy, root: Path, tmp_path: Path) -> Path:
    """A self-contained AOT file, in reach of no entry."""
    return self_contained(toy.entry, tmp_path / "toy.aot")


@pytest.fixture
def plan(root: Path) -> Plan:
    return make_plan(TOY, CompilationConfig())


def aot_of(root: Path) -> Path:
    (found,) = (root / "torch_compile_cache" / "torch_aot_compile").glob("*/rank_0_0/model")
    return found


def test_a_start_reads_the_aot_file_and_of_the_entry_only_header_and_artifacts(
    toy: CompiledToy, root: Path
) -> None:
    entry = root / "torch_compile_cache" / toy.entry.name
    for name in ("factors.json", "rank_0_0/manifest.json", "rank_0_0/backbone/wiring.json"):
        (entry / name).write_bytes(b"")
    runner = load_model(TOY, cache_root=root, force_aot_load=True)
    assert runner.report is not None
    assert (runner.report.outcome, runner.report.aot) == ("hit", aot_of(root))
    torch.testing.assert_close(runner(INPUTS), load_model(TOY, cache_root=toy.root)(INPUTS))


WITHOUT_A_COMPILER = """
import sys, torch
import torch._dynamo.convert_frame as frames

def no(*args, **kwargs):
    raise SystemExit("something was compiled")

torch.compile = torch._dynamo.optimize = no
for kind in (frames.ConvertFrame, frames.ConvertFrameAssert):
    kind.__call__ = no
frames._compile = no
before = frames.FRAME_COUNTER
from graphkiln.core import Deployment, load_model
runner = load_model(Deployment("preset:llama"), cache_root=sys.argv[1], force_aot_load=True)
assert runner.report.outcome == "hit"
tokens = runner.generate_greedy([5, 17, 250, 3, 99], 12)
assert frames.FRAME_COUNTER == before
assert "transformers" not in sys.modules and "torch._inductor.lowering" not in sys.modules
print(*tokens)
"""


def test_a_warm_start_works_where_frame_conversion_and_torch_compile_raise(llama: Compiled) -> None:
    command = [sys.executable, "-P", "-c", WITHOUT_A_COMPILER, str(llama.root)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runner = load_model(Deployment("preset:llama"), cache_root=llama.root)
    assert done.stdout.split() == [str(token) for token in runner.generate_greedy([5, 17, 250, 3, 99], 12)]


def set_in(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        for name in path[:-1]:
            body = body[name]
        body[path[-1]] = value

    return change


UNKNOWN = {"file_sha256": None, "functions": {"f": "0" * 64}}
NAMED = [
    (set_in("versions", "torch", value="9.9.9"), "torch version"),
    (set_in("versions", "python", value="3.9.1"), "python version"),
    (set_in("target", "features", value=["avx2", "sse99"]), "CPU features"),
    (set_in("target", "isa", value="other"), "target"),
    (set_in("code", "toy_helper", "functions", "shift", value="0" * 64), "toy_helper:shift"),
    (
        set_in("code", "no_such_module", value={"file_sha256": None, "functions": {"f": "0" * 64}}),
        "no_such_module",
    ),
]


@pytest.mark.parametrize(("change", "named"), NAMED, ids=[named for _, named in NAMED])
def test_what_the_header_says_no_to_has_a_name_and_nothing_behind_it_is_read(
    file: Path, root: Path, plan: Plan, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    def stale(body: dict[str, Any]) -> None:
        change(body)
        # A change of one file of the module: the functions are looked at one by one then.
        if "functions" in str(named) or ":" in named:
            body["code"]["toy_helper"]["file_sha256"] = "0" * 64

    changed(file, stale)
    data = file.read_bytes()
    stream = Counting(data)
    judged = type(opened(data))(stream, len(data), "test")
    found = judge(judged.header, plan)
    assert [reason.name for reason in found] == [named]
    assert stream.furthest == min(judged.header.offsets.values())
    with pytest.raises(AotRefused, match=named):
        warm(TOY, aot=file, force_aot_load=True, cache_root=root)
    # Without force the start goes on, here to the cache.
    report = warm(TOY, aot=file, require_hit=True, cache_root=root)
    assert (report.outcome, report.aot) == ("hit", aot_of(root))


def test_another_deployment_is_named_before_anything_is_read(file: Path, plan: Plan) -> None:
    other = make_plan(Deployment("toy_model:make", max_num_batched_tokens=64), CompilationConfig())
    reasons = [reason.name for reason in judge(opened(file.read_bytes()).header, other)]
    assert "max_num_batched_tokens" in reasons
    assert judge(opened(file.read_bytes()).header, plan) == []


def test_another_patch_version_of_python_is_no_reason(file: Path, plan: Plan) -> None:
    minor = ".".join(plan.factors.as_json()["compiler"]["python"].split(".")) if plan.factors else ""
    changed(file, set_in("versions", "python", value=f"{minor}.99"))
    assert judge(opened(file.read_bytes()).header, plan) == []


def test_another_torch_is_a_miss_by_lookup(root: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    report = warm(TOY, require_hit=True, cache_root=root)
    assert (report.outcome, [one.name for one in report.reasons]) == ("miss", ["torch version"])
    assert any("this start is for" in note and "torch 9.9.9" in note for note in report.notes)
    with pytest.raises(AotRefused, match="torch version"):
        warm(TOY, aot=aot_of(root), force_aot_load=True, cache_root=root)


def test_a_self_contained_file_serves_alone_for_another_user_in_another_place(
    toy: CompiledToy, file: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    user = {"TEST_UID": str(NOBODY)} if os.getuid() == 0 else {}
    environ = {"PATH": "", "HOME": str(tmp_path / "no home"), "PYTHONPATH": str(toy.code), **user}
    file.chmod(0o644)
    child = start(
        "warm",
        "toy_model:make",
        environ={**environ, "GRAPHKILN_DISABLE_COMPILE_CACHE": "1"},
        cwd=tmp_path,
        options={"require_hit": True, "aot": str(file), "force_aot_load": True},
    )
    assert child.outcome == "hit", child.answer
    assert child.report["counts"]["kernels_compiled"] == child.answer["frames"] == 0
    assert child.answer["spawned"] == []


def test_a_file_without_artifacts_needs_its_entry(toy: CompiledToy, root: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone"
    shutil.copy(aot_of(root), lone)
    with pytest.raises(AotRefused, match="its entry is not here"):
        warm(TOY, aot=lone, force_aot_load=True, cache_root=tmp_path / "empty")
    assert warm(TOY, aot=lone, force_aot_load=True, cache_root=root).outcome == "hit"


def test_force_without_a_file_and_without_permission(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AotRefused, match="no AOT file is there"):
        warm(TOY, force_aot_load=True, cache_root=tmp_path / "empty")
    with pytest.raises(AotRefused, match="no such file"):
        warm(TOY, aot=tmp_path / "none", force_aot_load=True, cache_root=root)
    monkeypatch.setenv("GRAPHKILN_USE_AOT_COMPILE", "0")
    with pytest.raises(ValueError, match="GRAPHKILN_USE_AOT_COMPILE=0 forbids"):
        warm(TOY, force_aot_load=True, cache_root=root)
    report = warm(TOY, require_hit=True, cache_root=root)
    assert (report.outcome, report.aot) == ("hit", None)


def test_a_demand_is_taken_back_where_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert aot_use(force=True).unforced == "leave --force-aot-load out"
    monkeypatch.setenv("GRAPHKILN_FORCE_AOT_LOAD", "1")
    assert aot_use().unforced == "unset GRAPHKILN_FORCE_AOT_LOAD"
    with pytest.raises(ValueError, match="is empty"):
        aot_use(path="")


@pytest.mark.parametrize("how", ["removed", "empty", "cut", "header", "body"])
def test_a_damaged_file_costs_no_compile_and_is_written_again(toy: CompiledToy, root: Path, how: str) -> None:
    lying = aot_of(root)
    sound = lying.read_bytes()
    at = {"header": 200, "body": len(sound) - 20}.get(how, 0)
    lying.write_bytes(
        {"empty": b"", "cut": sound[: len(sound) // 2]}.get(how, sound[:at] + b"~" + sound[at + 1 :])
    )
    if how == "removed":
        lying.unlink()
    runner = load_model(TOY, cache_root=root)
    assert runner.report is not None
    assert runner.report.outcome == "hit"
    assert any("written again" in note for note in runner.report.notes)
    assert lying.read_bytes() == sound
    torch.testing.assert_close(runner(INPUTS), load_model(TOY, cache_root=toy.root)(INPUTS))


def test_one_broken_piece_is_compiled_alone(llama: Compiled, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(llama.root, root)
    kernel = next(iter(sorted(root.rglob("*.so"))))
    kernel.write_bytes(kernel.read_bytes()[:-1])
    child = start("warm", "preset:llama", options={"cache_root": str(root)})
    assert child.outcome == "compiled"
    assert child.report["pieces"] == {"total": 5, "distinct": 3, "compiled": 1, "reused": 2}
    assert child.report["key"] == llama.child.report["key"]
    again = load_model(Deployment("preset:llama"), cache_root=root, force_aot_load=True)
    wanted = load_model(Deployment("preset:llama"), cache_root=llama.root)
    assert again.generate_greedy([5, 17, 250], 8) == wanted.generate_greedy([5, 17, 250], 8)


def test_a_piece_that_is_refused_twice_sets_its_entry_aside(
    toy: CompiledToy, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = load_piece

    def refuses(files: Any, device: int = 0) -> Any:
        if isinstance(files, FetchedArtifact):
            raise ImportError("undefined symbol")
        return sound(files)

    monkeypatch.setattr("graphkiln.core.loading.load_piece", refuses)
    entry = root / "torch_compile_cache" / toy.entry.name
    for times in (1, 2):
        report = warm(TOY, require_hit=True, cache_root=root)
        assert report.outcome == "miss"
        assert any("undefined symbol" in str(reason.now) for reason in report.reasons)
        assert entry.exists() == (times == 1)
    (aside,) = (root / "quarantine").iterdir()
    assert "refused 2 times" in json.loads((aside / "reason.json").read_text())["reason"]["reason"]
    assert not list((root / "torch_compile_cache" / "torch_aot_compile").iterdir())


def test_a_key_of_its_own_guards_is_the_only_one(file: Path, root: Path) -> None:
    body, sections = taken_apart(file.read_bytes())
    code = json.loads(sections["code.json"])
    code["backbone"]["smallest"] = 5
    sections["code.json"] = json.dumps(code, sort_keys=True, separators=(",", ":")).encode()
    data = packed(body, sections)
    assert opened(data).header.key != body["key"]
    # Put where its old key was, it is not that key's file.
    aot_of(root).write_bytes(data)
    report = warm(TOY, require_hit=True, cache_root=root)
    assert report.outcome == "hit"
    assert any("written again" in note for note in report.notes)
