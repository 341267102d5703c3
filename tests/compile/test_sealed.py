"""Sealed artifacts: loaded without Inductor or a compiler, and never mistaken for one another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphkiln.core import support_torch_compile, use_config
from graphkiln.core.compile.sealed import load_piece
from graphkiln.core.deployment import Deployment
from graphkiln.core.loading import FreshArtifact


@support_torch_compile
class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.factor).sin()


@support_torch_compile
class Awkward(nn.Module):
    """A constant tensor, a buffer that is written, an input and views that come back."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.total: torch.Tensor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.total.add_(x.sum(0))
        y = x + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return x, x.view(-1, 2, 2), y, y[:, 1], self.total * 2


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled(module: Any, root: Path, *inputs: torch.Tensor) -> tuple[Any, Path]:
    """Calls a module that was built under `use_config` and returns its result and its one artifact."""
    got = module(*inputs)
    (artifact,) = (root / "torch_compile_cache").glob("*/artifacts/*")
    return got, artifact


def built(make: Any, root: Path) -> Any:
    with use_config(deployment=Deployment("toy", max_num_batched_tokens=64), cache_root=root):
        return make()


def files_of(artifact: Path) -> dict[str, bytes | Path]:
    return {
        str(path.relative_to(artifact)): path if path.suffix == ".so" else path.read_bytes()
        for path in artifact.rglob("*")
        if path.is_file()
    }


LOAD = """
import sys
from pathlib import Path
import torch
from graphkiln.core.compile.sealed import load_piece

class Files:
    def read(self, name):
        return (Path(sys.argv[1]) / name).read_bytes()

    def path(self, name):
        return Path(sys.argv[1]) / name

def refuse(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        sys.exit(event)

sys.addaudithook(refuse)
piece = load_piece(Files())
print(piece([torch.ones(3, 4), 3])[0].sum().item())
private = ("torch._inductor", "torch._dynamo")
print(*[name for name in sys.modules if name.startswith(private)])
"""


def test_a_piece_is_loaded_without_inductor_and_two_of_one_source_are_two(tmp_path: Path) -> None:
    x = torch.ones(3, 4)
    _, two = compiled(built(lambda: Times(2.0), tmp_path / "a"), tmp_path / "a", x)
    _, three = compiled(built(lambda: Times(3.0), tmp_path / "b"), tmp_path / "b", x)

    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, str(two)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": ""},
    )
    value, imported = done.stdout.splitlines()
    assert float(value) == pytest.approx(float(torch.tensor(2.0).sin()) * 12)
    assert imported == ""

    # One source built with other flags: another library under the same kernel name.
    (ours,) = json.loads((two / "piece.json").read_bytes())["kernels"]
    (theirs,) = json.loads((three / "piece.json").read_bytes())["kernels"]
    renamed: dict[str, bytes | Path] = {
        name.replace(theirs, ours): data.replace(theirs.encode(), ours.encode())
        if isinstance(data, bytes)
        else data
        for name, data in files_of(three).items()
    }
    first, second = load_piece(FreshArtifact(files_of(two))), load_piece(FreshArtifact(renamed))
    torch.testing.assert_close(first([x, 3])[0], (x * 2).sin())
    torch.testing.assert_close(second([x, 3])[0], (x * 3).sin())


def test_constants_views_inputs_and_written_buffers_come_out_right(tmp_path: Path) -> None:
    eager, module = Awkward(), built(Awkward, tmp_path)
    for count in (5, 2, 1, 64):
        x = torch.linspace(-1, 1, count * 4).reshape(count, 4)
        wanted, got = eager(x), module(x)
        assert got[0] is x
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other)
        torch.testing.assert_close(module.total, eager.total)
