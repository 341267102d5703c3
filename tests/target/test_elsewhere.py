"""Compiling for a device that is not here: what is refused, and what a child process gives back."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.cache.inspect.verify import verify_entries
from graphkiln.core import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice
from graphkiln.core.plan import make_plan
from graphkiln.core.report import Silent, StartReport
from graphkiln.core.stale import find_stale
from graphkiln.core.start import key, load_model, precompile, warm
from graphkiln.core.target import elsewhere
from graphkiln.core.target.description import Description, find_description
from graphkiln.core.target.elsewhere import call_there, described_elsewhere, with_process
from graphkiln.core.target.named import find_target
from graphkiln.core.target.required import require_sources, require_tried, route
from graphkiln.core.target.torch_build import build_for, torch_sources
from graphkiln.core.target.tried import DESCRIBED, LIGHT, torch_minor
from tests.start.children import environment
from tests.target import light
from tests.target.crossing import can_cross, described_file

H200 = find_description("h200")
GIT_213 = "cf30153c4c131c8164ee7798e5022d810682e2cb"
SOURCES_213 = "735674374e708d45da0a366e45c8cd814c65a64c1e57e7efb1e568dd8a34a2cd"
MINOR = torch_minor()


def of_torch_213(**versions: Any) -> Description:
    return replace(H200, versions=replace(H200.versions, torch="2.13.0+cu130", **versions))


@pytest.mark.parametrize(
    ("torch_version", "is_cuda", "said"),
    [
        ("2.99.0+cu130", True, f"was tried with torch {', '.join(DESCRIBED)} only, and this is torch 2.99.0"),
        ("2.11.1+cu130", True, "it was seen with torch 2.11.0+cu130, and this is torch 2.11.1+cu130"),
        ("2.11.0+cu128", True, "it was seen with torch 2.11.0+cu130, and this is torch 2.11.0+cu128"),
        ("2.13.0+cpu", False, "it was seen with torch 2.11.0, and this is torch 2.13.0"),
        ("2.11.0+cpu", False, "compiling with the CPU build was tried with torch 2.13 only"),
    ],
)
def test_a_torch_that_was_not_tried_is_refused_with_that_sentence(
    torch_version: str, is_cuda: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_cuda)
    with pytest.raises(NoDevice) as caught:
        require_tried(H200)
    assert said in str(caught.value)


def test_what_to_install_is_a_build_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    for described, build in ((H200, "the CUDA build of torch 2.11.0"), (of_torch_213(), "torch 2.13.0")):
        with pytest.raises(NoDevice) as caught:
            require_tried(described)
        assert caught.value.remedy.startswith(f"install {build}, or describe the device")


def test_the_light_route_takes_the_files_of_torch_from_the_description_and_holds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    described = of_torch_213(torch_sources=None)
    with pytest.raises(NoDevice, match="does not record the files of the device's"):
        require_tried(described)
    with pytest.raises(NoDevice, match=r"are not those of torch 2\.13\.0"):
        require_sources(of_torch_213(torch_sources="0" * 64))
    assert "the CPU build of torch stands for 2.13.0+cu130; what torch 2.13" in route(described)
    assert build_for("2.13.0+cu130") == "2.13.0+cu130"
    assert build_for("2.14.0+cu130") == "2.13.0+cpu"
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert build_for("2.13.0+cu130") == "2.13.0+cpu"


@pytest.mark.skipif(str(torch.version.git_version) != GIT_213, reason="is about the files of torch 2.13.0")
def test_both_builds_of_torch_give_the_same_digest() -> None:
    # What the CUDA build of this version gave; CI has the CPU build.
    assert torch_sources() == SOURCES_213
    factors = [key(Deployment("preset:llama", target=name), trace=False).factors for name in ("h200", "cpu")]
    assert [one["compiler"]["torch"] for one in factors] == [str(torch.__version__)] * 2


STANDS_IN = """
import torch
from torch._subclasses import fake_tensor
from graphkiln.core.target.cpu_build import stand_in
from graphkiln.core.target.description import find_description
stand_in(find_description("h200"))
fake_tensor.init_gpu_context = torch.cuda._lazy_init = lambda *device: None
with fake_tensor.FakeTensorMode():
    rows = torch.ones(4, 5).to("cuda")
    print(rows.device, rows[torch.randperm(4, device="cuda")].device, torch.__version__, torch.version.cuda)
try:
    torch.ones(2).to("cuda")
except NotImplementedError:
    print("nothing real lies there")
"""


@pytest.mark.skipif(
    torch.backends.cuda.is_built() or MINOR not in LIGHT, reason="is about a CPU build that was tried"
)
def test_the_cpu_build_takes_fakes_for_a_device_and_nothing_else() -> None:
    command = [sys.executable, "-c", STANDS_IN]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.stdout.splitlines() == ["cuda:0 cuda:0 2.11.0+cu130 13.0", "nothing real lies there"], (
        done.stderr
    )


def test_another_python_or_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", H200.versions.torch)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.6.0")
    other = replace(H200, versions=replace(H200.versions, python="3.9"))
    with pytest.raises(NoDevice, match=r"seen with Python 3\.9"):
        require_tried(other)
    other = replace(H200, versions=replace(H200.versions, triton="3.1.0"))
    with pytest.raises(NoDevice, match=r"seen with Triton 3\.1\.0"):
        require_tried(other)


def test_what_an_entry_keeps_of_a_description_is_the_name_of_its_file(tmp_path: Path) -> None:
    plan = make_plan(Deployment("preset:llama", target=described_file("h200", tmp_path)), CompilationConfig())
    assert plan.requested()["deployment"]["target"] == "h200.json"
    assert [one.asked for one in plan.decisions if one.field == "target"] == ["h200.json"]


def test_a_cpu_and_no_target_are_here() -> None:
    assert described_elsewhere(Deployment("preset:llama", target="cpu")) is None
    assert described_elsewhere(Deployment("preset:llama")) is None


@pytest.mark.skipif(MINOR == "2.11", reason="this torch is the described one")
def test_what_a_child_process_raises_is_raised_here_with_its_traceback() -> None:
    with pytest.raises(NoDevice, match=r"it was seen with torch 2\.11\.0") as caught:
        call_there(H200, "key", Deployment("preset:llama", target="h200"), None)
    assert "Traceback" in str(caught.value.__cause__)


class TwoFacts(Exception):
    """Reads back with one fact, and needs two."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TwoFacts("this", "that"), "TwoFacts: this and that"),
        (type("Gone", (Exception,), {})("no such class"), "Gone: no such class"),
        (ValueError(lambda: None), "ValueError: <function"),
    ],
)
def test_an_error_that_cannot_be_sent_is_quoted(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(*args: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(elsewhere, "become", lambda description: None)
    monkeypatch.setattr("graphkiln.core.start.key", key)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        elsewhere._serve(theirs, "h200", "key", (), {})
        with pytest.raises(NoDevice, match=re.escape(said)):
            elsewhere._heard(ours, Silent())


def test_a_process_that_ends_without_a_word_is_told_by_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text("import os, sys\nos.kill(os.getpid(), 9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("graphkiln.core.target.child.SERVES", "ends")
    with pytest.raises(NoDevice, match=r"the process that compiles for it was ended by SIGKILL") as caught:
        call_there(H200, "key", Deployment("preset:llama", target="h200"), None)
    assert "out of memory" in caught.value.remedy


@pytest.mark.parametrize(("weights", "said"), [("load", True), ("none", False), (None, False)])
def test_weights_that_were_asked_for_and_not_loaded_are_told(
    weights: Any, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StartReport("compiled", "k", "l", "h200", notes=("before",))
    monkeypatch.setattr("graphkiln.core.start.described_elsewhere", lambda deployment: H200)
    monkeypatch.setattr("graphkiln.core.start.call_there", lambda *args, **named: made)
    notes = precompile(Deployment("preset:llama", target="h200"), weights=weights).notes
    assert [note.startswith("weights: none were loaded") for note in notes] == [False, *([True] * said)]


def test_what_the_other_process_took_is_a_phase_so_that_all_add_up_to_the_wall_time() -> None:
    report = StartReport("compiled", "k", "l", "h200", phases=(("plan", 1.5), ("trace", 2.0)))
    told = with_process(report, 5.0)
    assert told.phases == (("process", 1.5), ("plan", 1.5), ("trace", 2.0))
    assert told.seconds == 5.0
    assert with_process("key", 5.0) == "key"


def test_nothing_is_served_on_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkiln.core.target.elsewhere.require_tried", lambda description: None)
    with pytest.raises(NoDevice, match="nothing can be served on it: it needs a CUDA device"):
        load_model(Deployment("preset:llama", target="h200"))
    other = find_target("l4")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("graphkiln.core.target.cuda.live_target", lambda title=None: other)
    monkeypatch.setattr("graphkiln.core.target.named.live_target", lambda title=None: other)
    said = r"it needs NVIDIA H200 \(9\.0, 132 SMs\) \(here NVIDIA L4 \(8\.9, 58 SMs\)\)"
    with pytest.raises(NoDevice, match=said):
        load_model(Deployment("preset:llama", target="h200"))


@can_cross
def test_an_entry_for_a_gpu_is_made_here_found_by_emulation_and_by_no_other_target(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    config = CompilationConfig()

    def start(function: Any, target: str, **how: Any) -> Any:
        file = described_file(target, tmp_path)
        return function(replace(light.LLAMA, target=file), config, **how)

    made = start(precompile, "h200", cache_root=tmp_path)
    assert (made.outcome, made.emulated, made.check) == ("compiled", True, None)
    artifacts = {path.suffix for path in tmp_path.glob("torch_compile_cache/*/artifacts/*/kernels/*")}
    assert artifacts == {".py", ".cubin"}
    assert start(key, "h200").key == made.key
    with subtests.test("as the CUDA build makes it"):
        light.hold_to_the_cuda_build(made.entry_path, light.LLAMA)
    with subtests.test("sound, and not stale on the machine that made it"):
        assert [fault for verdict in verify_entries([made.entry_path]) for fault in verdict.faults] == []
        assert find_stale({"it": str(made.entry_path)}, ["compiler"]) == {"it": {"stale": False, "why": ""}}

    found = start(warm, "h200", require_hit=True, cache_root=tmp_path)
    assert (found.outcome, found.emulated, found.counts["kernels_compiled"]) == ("hit", True, 0)
    assert any("launches of attention in 130 kinds of step found their code" in note for note in found.notes)
    other = start(warm, "h100-sxm", require_hit=True, cache_root=tmp_path)
    assert (other.outcome, [one.name for one in other.reasons]) == ("miss", ["target"])

    again = start(precompile, "h200", cache_root=tmp_path / "again")
    assert [path.name for path in sorted(again.entry_path.glob("artifacts/*"))] == [
        path.name for path in sorted(made.entry_path.glob("artifacts/*"))
    ]


@can_cross
def test_a_model_s_own_triton_kernels_are_in_its_entry_and_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    text = (light.WITH_KERNELS / "user_kernels.py").read_text()
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "user_kernels.py"

    def start(function: Any, old: str = "", new: str = "", **how: Any) -> Any:
        assert old in text
        file.write_text(text.replace(old, new) if old else text)
        deployment = replace(light.KERNELS, target=described_file("h200", tmp_path))
        return function(deployment, CompilationConfig(), cache_root=tmp_path / "root", **how)

    made = start(precompile)
    assert (made.outcome, made.emulated) == ("compiled", True)
    with subtests.test("as the CUDA build makes it"):
        light.hold_to_the_cuda_build(made.entry_path, light.KERNELS)
    kernels = [
        json.loads(path.read_bytes())["triton"] for path in made.entry_path.glob("artifacts/*/piece.json")
    ]
    tuned = [one for found in kernels for one in found.values() if one["name"] == "shift_kernel"]
    assert [variant["config"]["BLOCK"] for variant in tuned[0]["variants"]] == [128, 1024]

    assert start(warm, require_hit=True).outcome == "hit"
    assert start(warm, "return x * HALF", "return x * HALF  # a remark", require_hit=True).outcome == "hit"
    for old, new in (
        ("constexpr(0.5)", "constexpr(0.25)"),
        ("return x * HALF", "return x + HALF"),
        ("num_warps=8", "num_warps=4"),
        ("count, 3.0, BLOCK=256", "count, 4.0, BLOCK=256"),
    ):
        assert start(warm, old, new, require_hit=True).outcome == "miss"
