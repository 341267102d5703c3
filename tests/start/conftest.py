"""What is compiled once for all tests here: a preset, and a toy of one kernel."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

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
    root = tmp_path_factory.mktemp("llama") / "root"
    return Compiled(root, start("precompile", "preset:llama", options={"cache_root": str(root)}))


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> CompiledToy:
    """The toy, precompiled in a process of its own."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder / "code")
    root = folder / "root"
    child = start(
        "precompile",
        "toy_model:make",
        environ=environment(PYTHONPATH=str(folder / "code")),
        options={"cache_root": str(root)},
    )
    return CompiledToy(root, child, folder / "code")


def write_toy(folder: Path, *, model: str = TOY, helper: str = HELPER) -> Path:
    """Writes the toy's two modules into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy_model.py").write_text(model)
    (folder / "toy_helper.py").write_text(helper)
    return folder
