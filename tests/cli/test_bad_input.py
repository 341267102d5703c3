"""Bad input and a machine that cannot do it: one line, a hint, and the exit status for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.models.folders import causal_lm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def missing(folder: Path) -> str:
    return str(folder / "none")


def without_config(folder: Path) -> str:
    return str(folder)


def not_json(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return str(folder)


def unsupported(folder: Path) -> str:
    config = {"model_type": "x", "architectures": ["XForCausalLM"], "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def no_preset(folder: Path) -> str:
    return "preset:none"


def not_cached(folder: Path) -> str:
    return "org/none"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (missing, "no such folder"),
        (without_config, "has no config.json"),
        (not_json, "config.json is not JSON"),
        (unsupported, "XForCausalLM"),
        (no_preset, "no such preset"),
        (not_cached, "HF_HUB_OFFLINE is set"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_model_that_cannot_be_used_is_one_line_and_exit_2_without_torch(
    make: Callable[[Path], str], says: str, folder: Path
) -> None:
    code = (
        "import sys; from graphkiln.cli.app import main; status = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    words = ["precompile", make(folder), "--cache-root", str(folder / "root")]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert_one_line(done.returncode, done.stdout, done.stderr, 2, says)
    assert not (folder / "root").exists()


@pytest.mark.slow
def test_truncated_weights_are_bad_input(folder: Path) -> None:
    causal_lm("llama").save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    command = [sys.executable, "-m", "graphkiln.cli", "precompile", str(folder), "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert_one_line(done.returncode, done.stdout, done.stderr, 2, "model.safetensors")


@pytest.mark.slow
def test_no_compiler_is_exit_4() -> None:
    command = [sys.executable, "-m", "graphkiln.cli", "precompile", "preset:llama", "-q"]
    environment = os.environ | {"CXX": "/bin/false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert_one_line(done.returncode, done.stdout, done.stderr, 4, "C++ compiler")


UNPRIVILEGED = """
import concurrent.futures.process, os, sys
import torch._inductor.compile_fx
from graphkiln.cli.app import main

words = ["warm", "preset:llama", "-q", "--cache-root"]
# once before, because another user may not be able to read what is still to be imported
main([*words, sys.argv[1] + "/none", "--require-hit"])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.stdout.flush()
sys.exit(main([*words, sys.argv[1]]))
"""


@pytest.mark.slow
def test_a_root_that_cannot_be_written_is_exit_4(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    for place in (tmp_path, *tmp_path.parents[:2]):  # pytest keeps its folders to their owner
        os.chmod(place, 0o755)
    if os.getuid() != 0:
        root.chmod(0o555)
    command = [sys.executable, "-c", UNPRIVILEGED, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert_one_line(done.returncode, "", done.stderr, 4, f"the cache at {root} cannot be used")


def assert_one_line(status: int, out: str, err: str, expected: int, says: str) -> None:
    told = [line for line in err.splitlines() if line not in ("import", "plan", "model")]
    assert status == expected, err
    assert out == ""
    assert told[0].startswith("error: ")
    assert says in told[0]
    assert [line[:6] for line in told[1:]] == ["hint: "]


def test_a_root_whose_name_the_terminal_has_no_letters_for_is_shown_with_escapes(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    root = tmp_path / "Zwischenspeicher-ä"
    done = subprocess.run(
        [sys.executable, "-m", "graphkiln.cli", "--cache-root", str(root), "cache", "dir"],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Zwischenspeicher-" in done.stdout


@pytest.mark.parametrize("command", ["check", "key", "explain", "warm", "precompile"])
def test_a_hint_names_the_command_that_was_typed(command: str, run: Callable[..., Run]) -> None:
    done = run(command, "preset:llama", "--max-num-seqs", "0")
    assert done.err.splitlines()[1].startswith(f"hint: graphkiln {command} --help lists")


def test_an_aot_file_that_cannot_be_opened_is_bad_usage_before_anything_is_built(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, sentence in (
        ("", "--aot is empty"),
        (f"{tmp_path}/none", f"--aot: {tmp_path}/none: no such file or directory"),
        (f"{tmp_path}", f"--aot: {tmp_path} is not a regular file"),
        (f"{tmp_path}/pipe", f"--aot: {tmp_path}/pipe is not a regular file"),
    ):
        done = run("warm", "preset:llama", "--aot", name, "--cache-root", f"{tmp_path}/root")
        assert (done.status, done.err.splitlines()[0]) == (2, f"error: {sentence}")
    assert not (tmp_path / "root").exists()


def test_an_aot_file_that_the_environment_forbids_is_bad_usage(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHKILN_USE_AOT_COMPILE", "0")
    for words in (
        ["warm", "--force-aot-load"],
        ["warm", "--aot", __file__],
        ["precompile", "--self-contained"],
        ["precompile", "--self-contained", "--target", "h200"],
    ):
        done = run(*words, "preset:llama")
        assert (done.status, done.out) == (2, "")
        assert "GRAPHKILN_USE_AOT_COMPILE=0 forbids it: unset it" in done.err
