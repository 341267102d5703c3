"""Real trees, where they are at hand, and small ones of the same shape everywhere."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

REAL = Path(__file__).resolve().parents[3] / "shared" / "vllm-caches"
NAMES = sorted(path.name.removesuffix(".tar.gz") for path in REAL.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives `unpacked(name)`: a real tree, unpacked once; it must not be changed."""
    folder = tmp_path_factory.mktemp("real")

    def at(name: str) -> Path:
        return unpack(name, folder)

    return at


def unpack(name: str, folder: Path) -> Path:
    """Return the real tree of that name, unpacked into a folder; skips where there are none."""
    if not (REAL / f"{name}.tar.gz").exists():
        pytest.skip(f"no real tree {name} beside this checkout")
    if not (folder / name).exists():
        with tarfile.open(REAL / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name
