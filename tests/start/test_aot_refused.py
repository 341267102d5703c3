"""AOT files that a start does not use, or cannot write: that it says so, and what it lets go of."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.cache.errors import LockTimeout
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.store import store as stores
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.halves import holds_artifacts
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.publish import publish_lock_name
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.trial import on_trial
from graphkiln.core.compile.execute import CompiledPart, LoadedPiece
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import AotRefused, StepFailed
from graphkiln.core.fetching import FetchedArtifact
from graphkiln.core.graphs.graph_set import GraphSet
from graphkiln.core.graphs.model_graphs import compiled_parts
from graphkiln.core.graphs.wrapper import CUDAGraphWrapper
from graphkiln.core.start import load_model, precompile, warm
from tests.graphs.recording import FakeRecorder
from tests.start.aot_files import changed, self_contained
from tests.start.conftest import CompiledToy

TOY = Deployment("toy_model:make")
INPUTS = torch.arange(12, dtype=torch.float32).reshape(3, 4)


@pytest.fixture
def root(toy: CompiledToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(toy.code))
    shutil.copytree(toy.root, tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def entry(toy: CompiledToy, root: Path) -> Entry:
    return Entry(root / "torch_compile_cache" / toy.entry.name)


@pytest.fixture
def file(toy: CompiledToy, tmp_path: Path) -> Path:
    return self_contained(toy.entry, tmp_path / "toy.aot")


def in_memory() -> list[str]:
    """The libraries of ours that this process holds in memory."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        # The folder that is listed was open too.
        if os.path.lexists(f"/proc/self/fd/{name}"):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(link for link in found if link.startswith("/memfd:graphkiln-"))


def test_a_file_that_serves_nothing_leaves_nothing_in_memory(
    file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Difference("code", "toy_model:Toy.forward", "0" * 64, "1" * 64)
    monkeypatch.setattr("graphkiln.core.finding.differences", lambda *_: [other])
    before = in_memory()
    assert warm(TOY, aot=file, require_hit=True, cache_root=root).outcome == "miss"
    assert in_memory() == before
    monkeypatch.undo()


def test_a_damaged_file_is_the_reason_where_one_is_demanded(entry: Entry, root: Path) -> None:
    (lying,) = root.rglob("torch_aot_compile/*/rank_0_0/model")
    sound = lying.read_bytes()
    for damaged in (sound[:200] + b"~" + sound[201:], b"", sound[:-1]):
        lying.write_bytes(damaged)
        with pytest.raises(AotRefused, match=f"AOT file of entry {entry.short}: (digest|unreadable|size)"):
            warm(TOY, force_aot_load=True, cache_root=root)


def test_a_file_whose_entry_ended_a_process_is_not_loaded_from_elsewhere_either(
    entry: Entry, file: Path, root: Path
) -> None:
    with pytest.raises(ZeroDivisionError), on_trial(CacheRoot(root), entry):
        raise ZeroDivisionError
    report = warm(TOY, aot=file, require_hit=True, cache_root=root)
    assert report.outcome == "miss"
    assert any("ended a process" in str(reason.now) for reason in report.reasons)


def test_a_self_contained_file_that_cannot_be_written_is_an_error(
    entry: Entry, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PUBLISH_LOCK_S", 0.05)
    cache = CacheRoot(root)
    with build_lock(cache, publish_lock_name(entry.short), 1), pytest.raises(LockTimeout):
        precompile(TOY, self_contained=True, cache_root=root)
    assert not holds_artifacts(cache, entry.key, "0_0")
    assert precompile(TOY, self_contained=True, cache_root=root).outcome == "hit"
    assert holds_artifacts(cache, entry.key, "0_0")
    # Nothing is left to be written.
    with build_lock(cache, publish_lock_name(entry.short), 1):
        assert precompile(TOY, self_contained=True, cache_root=root).outcome == "hit"


def test_what_is_mapped_by_its_path_is_not_read_a_second_time(tmp_path: Path) -> None:
    library: Future[bytes | Path] = Future()
    library.set_result(tmp_path / "kernel.so")
    with pytest.raises(ValueError, match=r"kernel\.so is mapped"):
        FetchedArtifact("entry", "a" * 64, {"kernel.so": library}, set()).read("kernel.so")


class Around(CUDAGraphWrapper):
    """Graphs around a piece that say when they are called."""

    def __init__(self, piece: LoadedPiece, happened: list[str]) -> None:
        super().__init__(piece, GraphSet(FakeRecorder()), name="piece", mode=None)
        self.happened = happened

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.happened.append("called")
        return super().__call__(*args, **kwargs)


def test_a_piece_with_graphs_around_it_is_loaded_before_they_are_called_and_held_to_what_it_takes(
    root: Path,
) -> None:
    runner = load_model(TOY, cache_root=root)
    wanted = runner(INPUTS)
    for dtype, told in (("torch.float32", None), ("torch.float64", r"piece 0, input \d")):
        runner = load_model(TOY, cache_root=root)
        happened: list[str] = []
        (part,) = compiled_parts(runner.plain_forward)

        def around(piece: Any, *_: Any, said: str = dtype, to: list[str] = happened) -> Around:
            inputs = [{**promised, "dtype": said} for promised in piece.inputs]

            def load() -> Any:
                to.append("loaded")
                return piece

            return Around(LoadedPiece(load, inputs, lazy=True), to)

        part.wrap_pieces(around)
        if told is None:
            torch.testing.assert_close(runner(INPUTS), wanted)
            assert happened == ["loaded", "called"]
        else:
            with pytest.raises(StepFailed, match=told):
                runner(INPUTS)
            assert happened == ["loaded"]


def test_a_file_of_no_entry_here_that_ended_a_process_is_refused_until_it_is_another(
    file: Path, toy: CompiledToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(toy.code))
    empty = tmp_path / "empty"

    def crash(part: CompiledPart, *args: object) -> object:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(CompiledPart, "__call__", crash)
        with pytest.raises(ZeroDivisionError):
            warm(TOY, aot=file, force_aot_load=True, cache_root=empty)
    for _ in range(2):
        with pytest.raises(AotRefused, match="first call ended a process"):
            warm(TOY, aot=file, force_aot_load=True, cache_root=empty)
    assert warm(TOY, aot=file, require_hit=True, cache_root=empty).outcome == "miss"
    # Made again, at another time: another header.
    changed(file, lambda body: body.update(created="2026-01-01T00:00:00+00:00"))
    for _ in range(2):
        assert warm(TOY, aot=file, force_aot_load=True, cache_root=empty).outcome == "hit"
