"""Modules are located without being imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from graphkiln.cache.factors.modules import locate


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package, a namespace package and modules in both; every `__init__` fails when it runs."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (
        "located/__init__.py",
        "located/deep/__init__.py",
        "located/deep/leaf.py",
        "spread/part/leaf.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise RuntimeError('imported')")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("located", "located/__init__.py"),
        ("located.deep", "located/deep/__init__.py"),
        ("located.deep.leaf", "located/deep/leaf.py"),
        ("spread.part.leaf", "spread/part/leaf.py"),
    ],
)
def test_nested_modules_are_found_and_nothing_is_imported(package: Path, name: str, file: str) -> None:
    before = set(sys.modules)
    assert locate(name) == package / file
    assert set(sys.modules) == before


def test_what_is_imported_answers_for_itself(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json.decoder

    assert locate("json.decoder") == Path(json.decoder.__file__)
    assert locate("os") == Path(os.__file__)
    assert locate("graphkiln.cache.factors.modules") is not None


def test_frozen_modules_are_found_by_their_real_file() -> None:
    assert locate("importlib._bootstrap") == Path(os.__file__).parent / "importlib" / "_bootstrap.py"


@pytest.mark.parametrize(
    "name", ["sys", "math", "no_such_module", "json.no_such", "no.such.module", "spread", "os.path.x"]
)
def test_what_has_no_source_file_is_none(package: Path, name: str) -> None:
    assert locate(name) is None


def test_a_module_without_a_spec_is_found_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    module = types.ModuleType("bare_script")
    module.__file__ = str(tmp_path / "bare_script.py")
    monkeypatch.setitem(sys.modules, "bare_script", module)
    assert locate("bare_script") is None
    Path(module.__file__).write_text("")
    assert locate("bare_script") == tmp_path / "bare_script.py"


def test_bytecode_without_source_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import py_compile

    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "only_bytecode.py"
    source.write_text("x = 1")
    py_compile.compile(str(source), cfile=str(tmp_path / "only_bytecode.pyc"))
    source.unlink()
    assert locate("only_bytecode") is None
