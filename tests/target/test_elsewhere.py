"""Compiling for a device that is not here: what is refused, and what a child process gives back."""

from __future__ import annotations

import importlib.util
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.core import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import NoDevice
from graphkiln.core.report import Silent
from graphkiln.core.start import key, load_model, precompile, warm
from graphkiln.core.target import elsewhere
from graphkiln.core.target.described import require_tried
from graphkiln.core.target.description import find_description
from graphkiln.core.target.elsewhere import call_there, described_elsewhere
from graphkiln.core.target.named import find_target
from graphkiln.core.target.tried import TRIED, torch_minor

H200 = find_description("h200")
MINOR = torch_minor()
can_cross = pytest.mark.skipif(
    MINOR not in TRIED or importlib.util.find_spec("triton") is None or not torch.backends.cuda.is_built(),
    reason="needs the CUDA build of a torch that was tried, and Triton",
)


@pytest.mark.parametrize(
    ("torch_version", "said"),
    [
        ("2.99.0+cu130", "was tried with torch 2.11 only, and this is torch 2.99.0"),
        ("2.11.1+cu130", "it was seen with torch 2.11.0, and this is torch 2.11.1"),
    ],
)
def test_a_torch_that_was_not_tried_is_refused_with_that_sentence(
    torch_version: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", torch_version)
    with pytest.raises(NoDevice) as caught:
        require_tried(H200)
    assert said in str(caught.value)


def test_another_python_or_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", H200.versions.torch)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.6.0")
    other = replace(H200, versions=replace(H200.versions, python="3.9"))
    with pytest.raises(NoDevice, match=r"seen with Python 3\.9"):
        require_tried(other)
    other = replace(H200, versions=replace(H200.versions, triton="3.1.0"))
    with pytest.raises(NoDevice, match=r"seen with Triton 3\.1\.0"):
        require_tried(other)


def test_a_cpu_and_no_target_are_here() -> None:
    assert described_elsewhere(Deployment("preset:llama", target="cpu")) is None
    assert described_elsewhere(Deployment("preset:llama")) is None


@pytest.mark.skipif(MINOR in TRIED, reason="this torch was tried")
def test_what_a_child_process_raises_is_raised_here_with_its_traceback() -> None:
    with pytest.raises(NoDevice, match="was tried with torch") as caught:
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
        ours.send(("h200", "key", (), {}))
        elsewhere._serve(theirs)
        with pytest.raises(NoDevice, match=re.escape(said)):
            elsewhere._heard(ours, Silent())


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
def test_an_entry_for_a_gpu_is_made_here_found_by_emulation_and_by_no_other_target(tmp_path: Path) -> None:
    config = CompilationConfig()

    def start(function: Any, target: str, **how: Any) -> Any:
        deployment = Deployment("preset:llama", dtype="bfloat16", target=target)
        return function(deployment, config, **how)

    made = start(precompile, "h200", cache_root=tmp_path)
    assert (made.outcome, made.emulated, made.check) == ("compiled", True, None)
    artifacts = {path.suffix for path in tmp_path.glob("torch_compile_cache/*/artifacts/*/kernels/*")}
    assert artifacts == {".py", ".cubin"}
    assert start(key, "h200").key == made.key

    found = start(warm, "h200", require_hit=True, cache_root=tmp_path)
    assert (found.outcome, found.emulated, found.counts["kernels_compiled"]) == ("hit", True, 0)
    other = start(warm, "h100-sxm", require_hit=True, cache_root=tmp_path)
    assert other.outcome == "miss"

    again = start(precompile, "h200", cache_root=tmp_path / "again")
    assert [path.name for path in sorted(again.entry_path.glob("artifacts/*"))] == [
        path.name for path in sorted(made.entry_path.glob("artifacts/*"))
    ]
