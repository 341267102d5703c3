"""Launches of Triton kernels while a model is gone through: noted where they are its own, made elsewhere."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest
import torch

from graphkiln.core.trace.operators import operator_log

MADE: list[tuple[Any, ...]] = []


def launch(self: Any, *args: Any, grid: Any, warmup: bool) -> str:
    MADE.append((*args, grid, warmup))
    return "launched"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel of what stands in for Triton, whether that is installed or not."""
    MADE.clear()
    for module, kinds in (("jit", ["JITFunction"]), ("autotuner", ["Autotuner", "Heuristics"])):
        name = f"triton.runtime.{module}"
        stand_in = types.ModuleType(name)
        for kind in kinds:
            setattr(stand_in, kind, type(kind, (), {"run": launch, "__module__": name}))
        monkeypatch.setitem(sys.modules, name, stand_in)
    made = sys.modules["triton.runtime.jit"].JITFunction()
    made.fn = launch
    return made


class Model(torch.nn.Module):
    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.elsewhere: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kernel.run(x, grid=(1,), warmup=False)
        serving = threading.Thread(
            target=lambda: self.elsewhere.append(self.kernel.run(7, grid=(2,), warmup=False))
        )
        serving.start()
        serving.join()
        return x


def test_a_launch_of_another_thread_is_made_while_one_is_traced(kernel: Any) -> None:
    model = Model(kernel)
    log = operator_log(model, [torch.zeros(3)])
    assert [one.name for one in log if one.name.startswith("kernel ")] == [f"kernel {__name__}:launch"]
    assert (MADE, model.elsewhere) == ([(7, (2,), False)], ["launched"])
    assert kernel.run(8, grid=(3,), warmup=False) == "launched"
