"""What every test runs under: an environment of its own, and no GPU tests where there is no GPU."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `gpu` where there is no device; only such a test makes it ask torch."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not has_gpu():
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No variable of ours leaks in, and nothing is written to the cache of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("GRAPHKILN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GRAPHKILN_CACHE_ROOT", str(tmp_path_factory.getbasetemp() / "cache-root"))
