"""What is compiled once for all tests here: a preset, and a toy of one kernel."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.shared import made_once
from tests.start.children import Child, environment, start

TOY = '''
import torch
from torch import nn
import toy_helper
from graphkiln.core import support_torch_compile

@support_torch_compile
class Toy(nn.Module):
    """A toy."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # one kernel and one matrix product
        return toy_helper.shift(self.linear(x)) * 3.0

    def example_inputs(self, count):
        return (torch.arange(count * 4, dtype=torch.float32).reshape(count, 4) / 7,)

def make():
    torch.manual_seed(0)
    return Toy()
'''
HELPER = '''
def shift(x):
    """Shifts."""
    return x.sin() + 0.5

def unrelated():
    return 1
'''


@dataclass(frozen=True)
class Compiled:
    """A cache root with one entry, and the start that made it. Tests copy it before they change it."""

    root: Path
    child: Child

    @property
    def entry(self) -> Path:
        (header,) = (self.root / "torch_compile_cache").glob("*/entry.json")
        return header.parent

    @property
    def aot(self) -> Path:
        """The AOT file of the entry."""
        (found,) = (self.root / "torch_compile_cache" / "torch_aot_compile").glob("*/rank_0_0/model")
        return found


@dataclass(frozen=True)
class CompiledToy(Compiled):
    """`code` is the folder that holds the toy's modules."""

    code: Path


@pytest.fixture(scope="session", autouse=True)
def _inductor_is_imported() -> None:
    """Importing Inductor warns of what torch itself still uses; a test of ours should not end there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("torch._inductor.compile_fx")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The preset, precompiled in a process of its own."""
    return compiled_once(tmp_path_factory, "llama", "preset:llama")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> CompiledToy:
    """The toy, precompiled in a process of its own."""
    code = write_toy(tmp_path_factory.mktemp("toy") / "code")
    environ = environment(PYTHONPATH=str(code))
    made = compiled_once(tmp_path_factory, "toy", "toy_model:make", environ=environ)
    return CompiledToy(made.root, made.child, code)


def compiled_once(temporary: pytest.TempPathFactory, name: str, model: str, **given: Any) -> Compiled:
    """Returns `model`, precompiled once for all processes of this run into a root that each has a copy of."""

    def make(folder: Path) -> Mapping[str, Any]:
        options = {"cache_root": str(folder / "root")}
        return start("precompile", model, options=options, **given).answer

    folder, answer = made_once(temporary, name, make)
    return Compiled(folder / "root", Child(answer))


def write_toy(folder: Path, *, model: str = TOY, helper: str = HELPER) -> Path:
    """Writes the toy's two modules into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy_model.py").write_text(model)
    (folder / "toy_helper.py").write_text(helper)
    return folder
