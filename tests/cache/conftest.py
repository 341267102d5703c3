"""Builders of real entries, and child processes that do what a start does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store

CHILD = Path(__file__).parent / "child.py"


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return CacheRoot(tmp_path / "root")


@pytest.fixture
def store(root: CacheRoot) -> Store:
    return Store(root)


@pytest.fixture
def factors() -> Factors:
    return make_factors()


@pytest.fixture
def publish() -> Callable[..., Entry]:
    """Publishes a small entry of the given factors and ranks."""
    return publish_entry


@pytest.fixture
def entry(store: Store, factors: Factors) -> Entry:
    return publish_entry(store, factors)


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `child.py` with the given arguments; whatever still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, tuple[int, int, int]]]:
    """Maps every path of a tree to size, mode and time of change."""
    return lambda folder: {
        str(path.relative_to(folder)): (status.st_size, status.st_mode, status.st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        for status in [path.lstat()]
    }


@pytest.fixture
def other_factors() -> Callable[..., Factors]:
    return make_factors


def make_factors(**changes: Any) -> Factors:
    values: dict[str, Any] = {
        "env": {"GRAPHKILN_CPP_FAST_MATH": False},
        "config": {"dtype": "float32"},
        "code": {"functions": {"model": {"forward": "0" * 64}}},
        "compiler": {"torch": "2.13.0"},
    }
    return Factors(**(values | changes))


def publish_entry(
    store: Store,
    factors: Factors,
    ranks: tuple[str, ...] = ("0_0",),
    header: Mapping[str, Any] | None = None,
    kernel: bytes = b"machine code",
) -> Entry:
    with store.draft(factors.key) as draft:
        (draft.scratch / "kernel.so").write_bytes(kernel * 1000)
        shared = draft.add_artifact({"kernel.so": draft.scratch / "kernel.so", "data/meta.json": b"{}"})
        draft.add_source("def forward(x):\n    return x\n")
        for rank in ranks:
            own = draft.add_artifact({"rank.bin": f"only for {rank}".encode()})
            draft.add_part(rank, "backbone", "# a graph\n", {"steps": [0, 1]}, [shared, own, shared])
            draft.set_rank(rank, {"rank": rank}, {"isa": "avx2"})
        return draft.publish({"model": "tiny", **(header or {})}, factors)
