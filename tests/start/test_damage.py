"""A damaged entry, two starts at once, a start that died: never wrong numbers, and the next start works."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.sweep import remove_dead_drafts
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import DoorError
from graphkiln.core.start import load_model, warm
from tests.start.children import environment, finish, launch, start
from tests.start.conftest import CompiledToy

TOY = Deployment("toy_model:make")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def removed(path: Path) -> None:
    path.unlink()


@pytest.fixture
def root(toy: CompiledToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(toy.code))
    shutil.copytree(toy.root, tmp_path / "root")
    return tmp_path / "root"


def files_that_run(entry: Path) -> list[Path]:
    """Every file of an entry that decides what a start does."""
    kept = [path for path in sorted(entry.rglob("*")) if path.is_file()]
    return [path for path in kept if path.name not in ("state.json",) and "source" not in path.parts]


@pytest.mark.parametrize("damage", [truncated, flipped, removed], ids=lambda damage: damage.__name__)
def test_no_damaged_file_is_ever_used(
    toy: CompiledToy,
    root: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The AOT file holds the same again: without it, the entry's own files are read.
    monkeypatch.setenv("GRAPHKILN_USE_AOT_COMPILE", "0")
    files = [path.relative_to(toy.entry) for path in files_that_run(toy.entry)]
    assert {path.suffix for path in files} >= {".json", ".so", ".py"}
    inputs = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    wanted = load_model(TOY, cache_root=root)(inputs)
    silent = []
    for number, name in enumerate(files):
        copy = tmp_path / str(number)
        shutil.copytree(toy.root, copy)
        damage(copy / "torch_compile_cache" / toy.entry.name / name)
        report = warm(TOY, require_hit=True, cache_root=copy)
        if report.outcome == "hit":
            silent.append(str(name))
            torch.testing.assert_close(load_model(TOY, cache_root=copy)(inputs), wanted)
        else:
            assert report.outcome == "miss"
    # What is there to be read by people decides nothing, and `cache verify` looks at it.
    assert {Path(name).suffix for name in silent} <= {".cpp", ".py"}
    assert {Path(name).name for name in silent if name.endswith(".py")} <= {"graph.py"}


def test_a_broken_piece_is_compiled_again_and_what_it_was_is_set_aside(toy: CompiledToy, root: Path) -> None:
    entry = root / "torch_compile_cache" / toy.entry.name
    (kernel,) = entry.rglob("*.so")
    flipped(kernel)
    child = start(
        "warm",
        "toy_model:make",
        environ=environment(PYTHONPATH=str(toy.code)),
        options={"cache_root": str(root)},
    )
    assert child.outcome == "compiled"
    assert child.report["key"] == toy.child.report["key"]
    assert any(kernel.name in note for note in child.report["notes"])
    (aside,) = (root / "quarantine").iterdir()
    reason = json.loads((aside / "reason.json").read_text())
    assert kernel.name in reason["reason"]["faults"][0]["file"]
    assert warm(TOY, require_hit=True, cache_root=root).outcome == "hit"


def test_an_entry_without_its_header_does_not_exist_and_is_made_again(toy: CompiledToy, root: Path) -> None:
    entry = root / "torch_compile_cache" / toy.entry.name
    (entry / "entry.json").unlink()
    report = warm(TOY, cache_root=root)
    assert report.outcome == "compiled"
    assert any(entry.name in note and "entry.json" in note for note in report.notes)
    assert warm(TOY, require_hit=True, cache_root=root).outcome == "hit"


def test_two_starts_at_once_compile_once(toy: CompiledToy, tmp_path: Path) -> None:
    environ = environment(PYTHONPATH=str(toy.code))
    options = {"cache_root": str(tmp_path / "root")}
    racing = [launch("warm", "toy_model:make", environ=environ, options=options) for _ in range(2)]
    done = [finish(process) for process in racing]
    assert sorted(child.outcome for child in done) == ["compiled", "hit"]
    assert {child.report["key"] for child in done} == {toy.child.report["key"]}
    assert sum(child.answer["frames"] for child in done) == 1
    assert len(list((tmp_path / "root" / "torch_compile_cache").glob("*/entry.json"))) == 1


def test_after_a_start_was_killed_the_next_one_works(toy: CompiledToy, tmp_path: Path) -> None:
    root = tmp_path / "root"
    environ = environment(PYTHONPATH=str(toy.code))
    process = launch("precompile", "toy_model:make", environ=environ, options={"cache_root": str(root)})
    # A draft in staging: it holds the build lock and is between its trace and its publication.
    deadline = time.monotonic() + 120
    while not any(path.is_dir() for path in (root / "staging").glob("*")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list((root / "torch_compile_cache").glob("*"))
    after = start("precompile", "toy_model:make", environ=environ, options={"cache_root": str(root)})
    assert after.outcome == "compiled"
    assert list((root / "staging").iterdir()) == []


def test_a_terminated_compile_leaves_no_process_behind(toy: CompiledToy, tmp_path: Path) -> None:
    root = tmp_path / "root"
    process = subprocess.Popen(
        [sys.executable, "-m", "graphkiln.cli", "--cache-root", str(root), "precompile", "toy_model:make"],
        env=environment(PYTHONPATH=str(toy.code)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not any(path.is_dir() for path in (root / "staging").glob("*")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 20
    while _is_there(process.pid):
        assert time.monotonic() < deadline, "children of the compile are still there"
        time.sleep(0.05)
    remove_dead_drafts(CacheRoot(root))
    assert list((root / "staging").iterdir()) == []


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


CRASH = """
import os, sys
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.sweep import remove_dead_drafts
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.start import warm
from graphkiln.core.deployment import Deployment

def call(self, *args):
    {how}

CompiledPart.__call__ = call
warm(Deployment("toy_model:make"), cache_root=sys.argv[1])
"""


@pytest.mark.parametrize("how", ["os._exit(70)", "raise AssertionError('an int where a tensor was due')"])
def test_an_entry_whose_first_call_ended_a_process_is_skipped_by_the_next(
    toy: CompiledToy, root: Path, how: str
) -> None:
    # Another test of this worker may have proved the entry that this root is a copy of.
    for state in root.glob("torch_compile_cache/*/state.json"):
        state.unlink()
    environ = environment(PYTHONPATH=str(toy.code))
    command = [sys.executable, "-P", "-c", CRASH.format(how=how), str(root)]
    assert subprocess.run(command, env=environ, capture_output=True).returncode in (70, 1)
    report = warm(TOY, cache_root=root)
    assert report.outcome == "compiled"
    assert any("suspect and was set aside" in note for note in report.notes)
    (aside,) = (root / "quarantine").iterdir()
    assert "ended a process" in (aside / "reason.json").read_text()
    assert warm(TOY, require_hit=True, cache_root=root).outcome == "hit"


def test_a_crash_after_a_first_success_costs_the_entry_nothing(toy: CompiledToy, root: Path) -> None:
    assert warm(TOY, require_hit=True, cache_root=root).outcome == "hit"
    environ = environment(PYTHONPATH=str(toy.code))
    command = [sys.executable, "-P", "-c", CRASH.format(how="os._exit(70)"), str(root)]
    assert subprocess.run(command, env=environ, capture_output=True).returncode == 70
    assert warm(TOY, require_hit=True, cache_root=root).outcome == "hit"


def test_a_mistake_of_the_caller_and_a_slow_call_are_not_the_entrys(
    toy: CompiledToy, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_model(TOY, cache_root=root)
    with pytest.raises(DoorError):
        runner(torch.zeros(3, 4, dtype=torch.float64))

    def slow(part: CompiledPart, *args: object) -> object:
        meanwhile = load_model(TOY, cache_root=root).report
        assert meanwhile is not None
        assert meanwhile.outcome == "hit"
        return None

    monkeypatch.setattr(CompiledPart, "__call__", slow)
    assert runner(torch.zeros(3, 4)) is None


FULL = """
import ctypes, sys
from graphkiln.cache.errors import DiskFull
from graphkiln.core.deployment import Deployment
from graphkiln.core.start import load_model, warm

place, size = sys.argv[1:]
NEW_NAMESPACE, PRIVATE = 0x20000, 0x4000 | 0x40000
libc = ctypes.CDLL(None, use_errno=True)
alone = libc.unshare(NEW_NAMESPACE) or libc.mount(b"none", b"/", None, PRIVATE, None)
if alone or libc.mount(b"none", place.encode(), b"tmpfs", 0, f"size={size}k".encode()):
    sys.exit(77)
toy = Deployment("toy_model:make")
try:
    warm(toy, cache_root=place)
except DiskFull as error:
    print(error)
print(load_model(toy, cache_root=place).report.outcome)
"""


@pytest.mark.parametrize("kib", [64, 120])
def test_a_disk_that_fills_up_while_compiling_is_told_as_that_and_serves_all_the_same(
    toy: CompiledToy, tmp_path: Path, kib: int
) -> None:
    command = [sys.executable, "-P", "-c", FULL, str(tmp_path), str(kib)]
    environ = environment(PYTHONPATH=str(toy.code))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this user may not mount a small disk")
    assert done.returncode == 0, done.stderr
    told, outcome = done.stdout.splitlines()
    assert told.startswith("the disk is full at ")
    assert outcome == "bypass"
