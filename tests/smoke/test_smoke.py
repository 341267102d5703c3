"""A call of an entry without its model finds what loads well and fails at its first call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.manifest import RESERVED
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.core.smoke import smoke
from tests.cache.inspect.made import cache_at, make_entry
from tests.cli.conftest import Run, run

__all__ = ["run"]

MODULE = """
import torch
from torch import nn

from graphkiln.core import support_torch_compile

@support_torch_compile
class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(4))

    def example_inputs(self, num_tokens):
        return (torch.ones(num_tokens, 8),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * self.scale

def toy():
    return Toy()
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """A real entry, of a model that is gone when it is called."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "smoke_toy_model.py").write_text(MODULE)
    command = [
        sys.executable, "-m", "graphkiln.cli", "precompile", "smoke_toy_model:toy", "--no-check", "--json",
        "--max-num-batched-tokens", "64", "--cache-root", str(folder / "root"),
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return Entry(Path(json.loads(done.stdout)["entry"]))


def rewritten(entry: Entry, store: Store, change: Callable[[dict[str, bytes]], Any]) -> Entry:
    """Publish an entry anew with the files of its artifacts changed: every digest agrees again."""
    manifest = entry.manifest("0_0")
    with store.draft(entry.key) as draft:
        ids = {}
        for artifact in manifest.artifacts:
            folder = entry.artifact_dir(artifact)
            files = {
                str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file()
            }
            change(files)
            ids[artifact] = draft.add_artifact(dict(files))
        for prefix, used in manifest.parts.items():
            wiring = entry.read_json("0_0", prefix, "wiring.json")
            pieces = [{**piece, "artifact": ids[piece["artifact"]]} for piece in wiring["pieces"]]
            draft.add_part("0_0", prefix, "", {**wiring, "pieces": pieces}, [ids[name] for name in used])
        draft.set_rank("0_0", {}, dict(manifest.build))
        header: Mapping[str, Any] = {
            name: value for name, value in entry.header.items() if name not in RESERVED
        }
        return draft.publish(header, entry.factors())


def raising(files: dict[str, bytes]) -> None:
    files["wrapper.py"] += b"\ndef call(args):\n    raise AssertionError('expected size 8==9')\n"


def dying(files: dict[str, bytes]) -> None:
    files["wrapper.py"] += (
        b"\ndef call(args):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )


@pytest.mark.slow
def test_an_entry_is_called_without_its_model(compiled: Entry) -> None:
    assert smoke(compiled.path) == {"ok": True, "detail": "backbone of 13 tokens gave [13, 4]"}


@pytest.mark.slow
def test_what_loads_and_then_raises_is_found(compiled: Entry, tmp_path: Path) -> None:
    entry = rewritten(compiled, cache_at(tmp_path), raising)
    assert entry.verify() == []
    told = smoke(entry.path)
    assert told["ok"] is False
    assert told["detail"].endswith("AssertionError: expected size 8==9")


@pytest.mark.slow
def test_verify_survives_what_kills_its_child_and_sets_it_aside(
    compiled: Entry, tmp_path: Path, run: Callable[..., Run]
) -> None:
    store = Store(CacheRoot(tmp_path / "root"))
    entry = rewritten(compiled, store, dying)
    words = ("cache", "verify", "--smoke", "--cache-root", str(store.root.path))
    done = run(*words)
    assert done.status == 1
    assert done.out == f"{entry.short} failed: the child process died: exit status -11\n"
    done = run(*words, "--repair")
    assert f"{entry.short} was set aside: " in done.out
    assert store.entries() == []
    [aside] = store.root.quarantine.iterdir()
    reason = json.loads((aside / "reason.json").read_bytes())["reason"]["reason"]
    assert reason == "its smoke call failed: the child process died: exit status -11"


def test_an_entry_that_cannot_be_called_alone_says_why(tmp_path: Path) -> None:
    entry = make_entry(cache_at(tmp_path))
    command = [sys.executable, "-m", "graphkiln.core.smoke", str(entry.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"ok": None, "detail": "its wiring has no door"}


def test_a_damaged_entry_fails_before_anything_in_it_is_run(tmp_path: Path) -> None:
    entry = make_entry(cache_at(tmp_path))
    (entry.path / "rank_0_0" / "backbone" / "wiring.json").write_bytes(b"")
    result = smoke(entry.path)
    assert result["ok"] is False
    assert "rank_0_0/backbone/wiring.json: size" in result["detail"]


def test_an_entry_for_a_gpu_is_said_to_need_its_model(tmp_path: Path) -> None:
    target = {"device": "cuda", "name": "cuda", "features": []}
    wiring = {"door": {"arguments": []}, "inputs": [], "steps": []}
    entry = make_entry(Store(CacheRoot(tmp_path)), header={"target": target}, wiring=wiring)
    told = smoke(entry.path)
    assert told == {"ok": None, "detail": "an entry for a GPU is not called without its model"}
