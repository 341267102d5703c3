"""What every test runs under: an environment of its own, and no GPU tests where there is no GPU."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import shared_folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `gpu` where there is no device; only such a test makes it ask torch."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not has_gpu():
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session", autouse=True)
def _kernels_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Puts `gxx.py` before g++, where that is the compiler."""
    compiler = shutil.which("g++")
    if compiler is None or "CXX" in os.environ:
        return
    folder = shared_folder(tmp_path_factory) / "g++"
    before = tmp_path_factory.mktemp("bin") / "g++"
    script = Path(__file__).with_name("gxx.py")
    before.write_text(f'#!/bin/sh\nexec {sys.executable} -SEs {script} {compiler} {folder} "$@"\n')
    before.chmod(0o755)
    os.environ["PATH"] = f"{before.parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No variable of ours leaks in, and nothing is written to the cache of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("GRAPHKILN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GRAPHKILN_CACHE_ROOT", str(tmp_path_factory.getbasetemp() / "cache-root"))


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """A command that a test runs in this process sends our log to its stderr, and would do so ever after."""
    logger = logging.getLogger("graphkiln")
    level, handlers, propagate = logger.level, logger.handlers, logger.propagate
    yield
    logger.setLevel(level)
    logger.handlers, logger.propagate = handlers, propagate
