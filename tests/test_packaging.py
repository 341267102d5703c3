"""The root folders are the packages `graphkiln.*`: listed, imported by that name, all in the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("cli", "core", "cache")


def packages_on_disk() -> set[str]:
    inits = [init for part in PARTS for init in (ROOT / part).rglob("__init__.py")]
    return {"graphkiln." + init.parent.relative_to(ROOT).as_posix().replace("/", ".") for init in inits}


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == packages_on_disk()


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {module.parent for part in PARTS for module in (ROOT / part).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_nothing_imports_the_bare_folder_names() -> None:
    code = (
        "import graphkiln.cli.app, graphkiln.core, graphkiln.cache, sys;"
        "print([name for name in ('cli', 'core', 'cache') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_marker(tmp_path: Path) -> None:
    # a copy, because setuptools leaves a build folder that outlives deleted modules
    copy = tmp_path / "source tree"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        "out",
        ".",
    ]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)
    [wheel] = (copy / "out").glob("graphkiln-*.whl")

    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("graphkiln/")}

    modules = {path for part in PARTS for path in (copy / part).rglob("*.py")}
    markers = {copy / part / "py.typed" for part in PARTS}
    devices = set((copy / "core" / "target" / "devices").glob("*.json"))
    assert devices
    assert held == {f"graphkiln/{path.relative_to(copy).as_posix()}" for path in modules | markers | devices}
