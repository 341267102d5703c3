"""What is published and where, and when nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphkiln.core import loading
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CheckFailed
from graphkiln.core.start import key, load_model, precompile, warm
from tests.start.conftest import CompiledToy

TOY = Deployment("toy_model:make")


@pytest.fixture
def toy_modules(toy: CompiledToy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(toy.code))


def entries(root: Path) -> list[str]:
    folder = root / "torch_compile_cache"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_failed_check_publishes_nothing(
    toy_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_part = loading.load_part

    def off_by_a_little(*args: Any) -> Any:
        serve = load_part(*args)
        return lambda *inputs: serve(*inputs) + 0.01

    monkeypatch.setattr("graphkiln.core.building.load_part", off_by_a_little)
    with pytest.raises(CheckFailed, match="check failed at 1 tokens"):
        precompile(TOY, cache_root=tmp_path / "root")
    assert entries(tmp_path / "root") == []
    assert list((tmp_path / "root" / "staging").iterdir()) == []


def test_a_disabled_cache_writes_nothing_and_is_no_miss(
    toy_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHKILN_DISABLE_COMPILE_CACHE", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    runner = load_model(TOY, cache_root=tmp_path / "root")
    report = runner.report
    assert report is not None
    assert (report.outcome, report.entry_path) == ("bypass", None)
    assert [reason.name for reason in report.reasons] == ["GRAPHKILN_DISABLE_COMPILE_CACHE"]
    assert list(tmp_path.iterdir()) == []


def test_a_cache_folder_of_ones_own_keeps_factors_and_is_checked(
    toy: CompiledToy, toy_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CompilationConfig(cache_dir=str(tmp_path / "mine"))
    cold = precompile(TOY, config, check=False, store_source=False, cache_root=tmp_path / "root")
    assert cold.entry_path is not None
    assert cold.entry_path.parent == tmp_path / "mine"
    factors = json.loads((cold.entry_path / "factors.json").read_text())
    assert set(factors) >= {"env", "config", "code", "compiler"}
    assert not (cold.entry_path / "source").exists()
    assert not (tmp_path / "root").exists()
    assert cold.key == toy.child.report["key"]
    assert warm(TOY, config, require_hit=True).outcome == "hit"
    # without the AOT file, which holds them too, the factors beside it are what a start is held to
    monkeypatch.setenv("GRAPHKILN_USE_AOT_COMPILE", "0")
    (cold.entry_path / "factors.json").write_text("{}")
    assert warm(TOY, config, require_hit=True).outcome == "miss"


UNDECORATED = """
import torch
from torch import nn

class Plain(nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids.float() * 2

def make():
    return Plain()
"""


def test_a_factory_may_return_a_module_whose_class_is_not_decorated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_undecorated.py").write_text(UNDECORATED)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert key(Deployment("toy_undecorated:make")).factors["code"]["backbone"]["class"].endswith("Plain")
