"""What `precompile`, `warm` and `key` print for what `core` reports, and how they exit.

The functions of `core` are stood in for, because a compile is not what is shown here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphkiln.cache.factors.difference import Difference
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CheckFailed, ModelError
from graphkiln.core.report import CheckReport, CheckRow, Decision, KeyReport, PieceCounts, StartReport
from tests.cli.conftest import Run

PINS = (Path(__file__).parents[2] / "scripts" / "constraints.txt").read_text()
PINNED_TYPER = PINS.partition("\ntyper==")[2].split()[0]
KEY, LOOKUP = "3f" * 32, "a1" * 32
DECISION = Decision("cudagraph_mode", "FULL_AND_PIECEWISE", "NONE", "a CPU has no CUDA graphs")
COMPILED = StartReport(
    outcome="compiled",
    key=KEY,
    lookup=LOOKUP,
    target="cpu:avx2",
    entry_path=Path("/cache/torch_compile_cache/3f3f3f3f3f"),
    phases=(("plan", 0.1234), ("trace", 2.5), ("compile", 11.25), ("publish", 0.01)),
    pieces=PieceCounts(total=61, distinct=3, compiled=3, reused=58),
    entry_bytes=1310720,
    decisions=(DECISION,),
    check=CheckReport((CheckRow(1, 0.0, 1e-4), CheckRow(2048, 3.1e-7, 1e-4))),
    counts={"frames_converted": 1, "kernels_compiled": 3, "child_processes": 4, "artifacts_loaded": 3},
)
HIT = StartReport(
    outcome="hit",
    key=KEY,
    lookup=LOOKUP,
    target="cpu:avx2",
    entry_path=Path("/cache/torch_compile_cache/3f3f3f3f3f"),
    phases=(("plan", 0.1), ("load", 0.3)),
    pieces=PieceCounts(total=61, distinct=3, compiled=0, reused=61),
    entry_bytes=1310720,
    counts={"frames_converted": 0, "kernels_compiled": 0, "child_processes": 0, "artifacts_loaded": 3},
    compiled_seconds=13.75,
)
MISS = StartReport(
    outcome="miss",
    key=None,
    lookup=LOOKUP,
    target="cpu:avx2",
    phases=(("plan", 0.1),),
    reasons=(
        Difference("config", "deployment.max_num_batched_tokens", 2048, 4096),
        Difference("code", "model.Layer.forward", "ab" * 32, "cd" * 32, remedy="restore model.py"),
        Difference("env", "GRAPHKILN_X", None, "1", relevant=False, remedy="unset GRAPHKILN_X", kind="added"),
    ),
)
BYPASS = StartReport(
    outcome="bypass", key=None, lookup=None, target="cpu:avx2", notes=("the cache is turned off",)
)
KEY_REPORT = KeyReport(
    key=KEY,
    lookup=LOOKUP,
    hashes={"env": "0a" * 32, "config": "1b" * 32, "code": "2c" * 32, "compiler": "3d" * 32},
    factors={
        "env": {"GRAPHKILN_CPP_FAST_MATH": False},
        "config": {"deployment": {"dtype": "float32", "block_size": 16}, "sizes": [1, 8]},
        "code": {"functions": [{"name": "model.f"}], "empty": ""},
        "compiler": {"torch": "2.13.0"},
    },
    decisions=(DECISION,),
    target="cpu:avx2",
    effective={"compilation": {"mode": "VLLM_COMPILE", "cudagraphs": {"mode": "NONE", "capture_sizes": []}}},
)


class Core:
    """Stands in for `graphkiln.core.start`: gives or raises what it was told to, and keeps its arguments."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.deployment: Any = None
        self.config: Any = None
        self.options: dict[str, Any] = {}

    def _called(self, deployment: Any, config: Any, **options: Any) -> Any:
        self.deployment, self.config, self.options = deployment, config, options
        if progress := options.get("progress"):
            progress.phase("trace")
            progress.pieces(3, 3)
            progress.note("one note")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    precompile = warm = key = _called


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core()
    module: Any = SimpleNamespace(precompile=core.precompile, warm=core.warm, key=core.key)
    monkeypatch.setitem(sys.modules, "graphkiln.core.start", module)
    monkeypatch.setattr("graphkiln.core.start", module, raising=False)
    monkeypatch.setattr("graphkiln.cli.session.Session.seconds", lambda session: 1.5)
    return core


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["precompile", "preset:llama"], COMPILED),
        (["precompile", "preset:llama", "--json"], COMPILED),
        (["warm", "preset:llama", "--require-hit"], HIT),
        (["warm", "preset:llama", "--require-hit", "-q"], MISS),
        (["warm", "preset:llama", "--json", "-q"], MISS),
        (["precompile", "preset:llama", "-q"], BYPASS),
        (["key", "preset:llama"], KEY_REPORT),
        (["key", "preset:llama", "-v"], KEY_REPORT),
        (["key", "preset:llama", "-q"], KEY_REPORT),
        (["key", "preset:llama", "--json"], KEY_REPORT),
    ],
    ids=lambda value: " ".join(value).replace("preset:llama ", "") if isinstance(value, list) else "",
)
def test_output_of(
    words: list[str], answer: Any, core: Core, run: Callable[..., Run], snapshot: Callable[[str], None]
) -> None:
    core.answer = answer
    snapshot(str(run(*words)))


@pytest.mark.skipif(version("typer") != PINNED_TYPER, reason="other versions of typer draw help otherwise")
@pytest.mark.parametrize(
    "command",
    [
        "",
        "precompile",
        "warm",
        "key",
        "explain",
        "check",
        "target",
        "target describe",
        "cache",
        "cache ls",
        "cache inspect",
        "cache diff",
    ],
    ids=lambda text: text or "all",
)
def test_help_of(command: str, snapshot: Callable[[str], None]) -> None:
    # a process of its own: how help is drawn is settled when the parser is imported
    environment = {"COLUMNS": "80", "NO_COLOR": "1", "PATH": "", "_TYPER_FORCE_DISABLE_TERMINAL": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "graphkiln.cli", *command.split(), "--help"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    snapshot(done.stdout)


@pytest.mark.parametrize(
    ("command", "report", "status"),
    [
        ("precompile", COMPILED, 0),
        ("precompile", HIT, 0),
        ("precompile", BYPASS, 1),
        ("warm", HIT, 0),
        ("warm", COMPILED, 0),
        ("warm", MISS, 1),
        ("warm", BYPASS, 1),
        ("precompile", CheckFailed(7, 0.5, 0.001), 1),
        ("precompile", ModelError("m", "no such folder", "give one"), 2),
        ("key", RuntimeError("a bug"), 3),
        ("key", KeyboardInterrupt(), 130),
    ],
)
def test_exit_status(command: str, report: Any, status: int, core: Core, run: Callable[..., Run]) -> None:
    core.answer = report
    assert run(command, "preset:llama").status == status


def test_every_option_reaches_the_deployment_and_the_config(
    core: Core, run: Callable[..., Run], tmp_path: Path
) -> None:
    core.answer = COMPILED
    deployment: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_num_batched_tokens": 64,
        "max_num_seqs": 4,
        "max_model_len": 32,
        "block_size": 8,
        "target": "cpu:avx2",
        "load_format": "dummy",
    }
    words = [
        word for name, value in deployment.items() for word in ("--" + name.replace("_", "-"), str(value))
    ]
    root = ["--cache-root", str(tmp_path)]
    done = run(
        "precompile",
        "preset:llama",
        *words,
        "-O1",
        "-cc.mode=NONE",
        "--performance-mode=interactivity",
        "--enforce-eager",
        "--no-check",
        "--weights=none",
        "--no-store-source",
        "--debug-dump",
        str(tmp_path),
        "-q",
        *root,
    )
    assert done.status == 0, done.err
    assert core.deployment == Deployment("preset:llama", **deployment)
    assert (core.config.optimization_level, core.config.mode) == (1, 0)
    assert (core.config.performance_mode.value, core.config.enforce_eager) == ("interactivity", True)
    assert core.options == {
        "check": False,
        "weights": "none",
        "store_source": False,
        "self_contained": False,
        "debug_dump": tmp_path,
        "choices": None,
        "cache_root": tmp_path,
        "progress": None,
    }


@pytest.mark.parametrize("words", [["-O3"], ["-O=3"], ["-O", "O3"], ["--optimization-level", "O3"], ["-OO3"]])
def test_a_level_is_one_number_however_it_is_typed(
    words: list[str], core: Core, run: Callable[..., Run]
) -> None:
    core.answer = KEY_REPORT
    assert run("key", "preset:llama", *words).status == 0
    assert core.config.optimization_level == 3


def test_defaults_are_those_of_a_deployment(core: Core, run: Callable[..., Run]) -> None:
    core.answer = KEY_REPORT
    run("key", "preset:llama")
    assert core.deployment == Deployment("preset:llama")
    assert core.options == {"trace": True}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs must be at least 1, not 0"),
        (["--dtype", "int3"], "dtype must be one of"),
        (["-cc.modus=3"], "compilation config has no field 'modus': did you mean mode?"),
        (["-cc.pass_config.fuse_nor=true"], "has no field 'fuse_nor': did you mean fuse_norm_quant?"),
        (
            ["-cc.cudagraph_mode=HALF"],
            "is not one of NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE",
        ),
        (["-cc.cudagraph_capture_sizes=[0,1]"], "cudagraph_capture_sizes: 0 is below 1"),
        (["-cc.cudagraph_capture_sizes=null"], "cudagraph_capture_sizes: null is no value"),
        (["-cc.backend=cudagraphs"], "backend: 'cudagraphs' is not one of inductor, eager"),
        (["--performance-mode", "fast"], "performance_mode: 'fast' is not one of balanced"),
        (["--max-num-seqs", "8", "--max-num-batched-tokens", "4"], "4 is below max_num_seqs 8"),
        (["-O7"], "optimization_level: 7 is not one of 0, 1, 2, 3"),
        (["--target", "cpu:avx3"], "target cpu:avx3: unknown instruction set"),
        (["--target", "cpu:"], "target cpu:: unknown instruction set"),
        (["--max-num-batched-tokens", "1"], "1 leaves no token count that could vary: use at least 2"),
        (["--max-num-seqs", "9999999999"], "max_num_seqs must be at most 2147483647, not 9999999999"),
        (['-cc.custom_ops=["+rms_nrom"]'], "custom_ops has no op 'rms_nrom': did you mean rms_norm?"),
        (
            ["-cc.inductor_compile_config.max_autotun=1"],
            "no option 'max_autotun': did you mean max_autotune?",
        ),
        (["--cache-root", ""], "--cache-root is empty"),
        (["-Ofast"], "optimization_level: 'fast' is not one of 0, 1, 2, 3"),
        (["--device", "cpu", "--target", "cpu"], "both say where to run"),
        (["--nope"], "no such option"),
        (["--max-num-seqs", "many"], "invalid value for '--max-num-seqs'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    words: list[str], sentence: str, core: Core, run: Callable[..., Run]
) -> None:
    done = run("precompile", "preset:llama", *words)
    first, *hints = done.err.splitlines()
    assert done.status == 2
    assert first.startswith("error: ")
    assert sentence in first
    assert all(line.startswith("hint: ") for line in hints)
    assert done.out == ""


def test_an_error_under_json_is_an_object_too(core: Core, run: Callable[..., Run]) -> None:
    core.answer = ModelError("m", "no such folder", "give one")
    done = run("precompile", "preset:llama", "--json", "-q")
    assert json.loads(done.out) == {
        "schema": 1,
        "command": "precompile",
        "error": {"kind": "ModelError", "message": "m: no such folder", "hint": "give one"},
        "exit": 2,
    }
    assert done.err == "error: m: no such folder\nhint: give one\n"


def test_a_miss_with_no_entry_near_says_so(core: Core, run: Callable[..., Run]) -> None:
    core.answer = replace(MISS, reasons=())
    assert "why it is no hit\nno entry has this lookup\n" in run("warm", "preset:llama", "--require-hit").out


def test_a_traceback_is_shown_with_vv_only(core: Core, run: Callable[..., Run]) -> None:
    core.answer = RuntimeError("a bug")
    assert "Traceback" not in run("precompile", "preset:llama", "-v").err
    assert "Traceback" in run("precompile", "preset:llama", "-vv").err
