"""An installed vLLM is made to fill its own cache, and what it left is verified. The vLLM here is a toy."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from graphkiln.cli.commands import precompile_engine
from tests.cli.conftest import Run
from tests.layouts.trees import Vllm

# Writes what a start writes, answers when it is done, and ends when it is told to.
SERVER = """
import argparse, os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tests.layouts.trees import Vllm

parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("model")
parser.add_argument("--host")
parser.add_argument("--port", type=int)
asked = parser.parse_args()
print("toy server of", asked.model)
Path(os.environ["TOY_PID"]).write_text(str(os.getpid()))
if asked.model == "fails":
    sys.exit("no such model")
if asked.model != "eager":
    tree = Vllm(Path(os.environ["VLLM_CACHE_ROOT"])).write()
if asked.model == "damages":
    tree.model.write_bytes(b"")
if asked.model == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

HTTPServer((asked.host, asked.port), Health).serve_forever()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs the toy; gives the file that it leaves its process id in."""
    package = tmp_path / "site" / "vllm"
    (package / "entrypoints" / "cli").mkdir(parents=True)
    for folder in (package, package / "entrypoints", package / "entrypoints" / "cli"):
        (folder / "__init__.py").touch()
    (package / "entrypoints" / "cli" / "main.py").write_text(SERVER)
    monkeypatch.syspath_prepend(tmp_path / "site")
    here = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{here}")
    monkeypatch.setenv("TOY_PID", str(tmp_path / "pid"))
    return tmp_path / "pid"


def has_ended(pid: Path) -> bool:
    return not Path(f"/proc/{pid.read_text()}").exists()


def engine(root: Path, model: str) -> list[str]:
    return ["precompile", "--engine", f"vllm:{root}", "--", model]


def test_vllm_fills_its_cache_and_what_it_left_is_verified(
    installed: Path, tmp_path: Path, run: Callable[..., Run]
) -> None:
    root = tmp_path / "root"
    done = run(*engine(root, "org/model"))
    assert done.status == 0, done
    assert [line.split()[0] for line in done.out.splitlines()] == ["id", Vllm(root).short]
    assert "vLLM served after" in done.err
    assert "1 entry" in done.err
    assert has_ended(installed)
    # The second start may have hit, or may have had no cache: nothing tells.
    done = run(*engine(root, "eager"))
    assert (done.status, done.out) == (3, "")
    assert "nothing is new in" in done.err


def test_the_place_is_that_of_the_cache_root_or_of_vllm(
    installed: Path, tmp_path: Path, run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    words = ["precompile", "--engine", "vllm", "--json", "--cache-root", str(root), "--", "org/model"]
    found = json.loads(run(*words).out)
    assert (found["engine"], found["root"]) == ("vllm", str(root))
    assert [row["id"] for row in found["entries"]] == [Vllm(root).short]
    assert [one["status"] for one in found["verified"]] == ["sound"]
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "usual"))
    assert run("precompile", "--engine", "vllm", "-q", "--", "org/model").status == 0
    assert Vllm(tmp_path / "usual").model.exists()


def test_the_folder_of_the_entries_names_the_root_that_it_lies_in(
    installed: Path, tmp_path: Path, run: Callable[..., Run]
) -> None:
    root = tmp_path / "root"
    words = ["precompile", "--json", *engine(root / "torch_compile_cache", "org/model")[1:]]
    found = json.loads(run(*words).out)
    assert found["root"] == str(root)
    assert [row["id"] for row in found["entries"]] == [Vllm(root).short]
    assert Vllm(root).model.exists()


def test_a_group_is_ended_while_its_id_is_still_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def killpg(group: int, number: int) -> None:
        # Raises ChildProcessError of a child that was reaped, whose id may be somebody else's.
        os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        ended.append(number)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", killpg)
    command = [sys.executable, "-S", "-c", "raise SystemExit(7)"]
    with precompile_engine.server(command, dict(os.environ), quiet=True) as child:
        assert precompile_engine.status_within(child, 60.0) == 7
    assert (ended, child.returncode) == ([signal.SIGKILL], 7)


def test_what_it_leaves_damaged_is_told(installed: Path, tmp_path: Path, run: Callable[..., Run]) -> None:
    done = run(*engine(tmp_path / "root", "damages"))
    assert done.status == 1
    assert f"{Vllm(tmp_path / 'root').short} is broken" in done.out
    assert has_ended(installed)


def test_a_start_that_writes_nothing_is_told(
    installed: Path, tmp_path: Path, run: Callable[..., Run]
) -> None:
    done = run(*engine(tmp_path / "root", "eager"))
    assert (done.status, done.out) == (1, "")
    assert "nothing was written to" in done.err


def test_a_start_that_fails_is_one_line(installed: Path, tmp_path: Path, run: Callable[..., Run]) -> None:
    done = run(*engine(tmp_path / "root", "fails"))
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[0] == "error: vLLM ended with status 1 before it served"


def test_a_server_that_does_not_end_is_made_to(
    installed: Path, tmp_path: Path, run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompile_engine, "_MOST_TO_END_S", 0.2)
    assert run(*engine(tmp_path / "root", "stubborn")).status == 0
    assert has_ended(installed)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--engine sglang -- model", "no engine 'sglang'"),
        ("--engine vllm", "--engine needs the arguments of vllm serve"),
        ("--engine vllm model", "with --engine, MODEL goes to vLLM behind --"),
        ("--engine vllm --dtype float32 -- model", "with --engine, --dtype goes to vLLM behind --"),
        ("--engine vllm -O2 -- model", "with --engine, what -O and -cc say goes to vLLM behind --"),
        ("--engine vllm --no-check -- model", "--engine takes --json and --cache-root alone"),
        ("--engine vllm -- model --port 80", "--port is not for a start that serves nobody"),
        ("", "missing argument 'MODEL'"),
    ],
)
def test_bad_usage_is_told(words: str, sentence: str, run: Callable[..., Run]) -> None:
    done = run("precompile", *words.split())
    assert (done.status, done.err.splitlines()[0]) == (2, f"error: {sentence}")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="a vLLM is installed")
def test_without_a_vllm_it_is_one_line(run: Callable[..., Run]) -> None:
    done = run("precompile", "--engine", "vllm", "--", "org/model", "--max-num-seqs", "8")
    assert (done.status, done.out) == (4, "")
    assert done.err.splitlines()[0] == f"error: no vLLM is installed for {sys.executable}"
