from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import ModelError
from graphkiln.core.models.load import build
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.parts import find_parts

MODULE = """
from __future__ import annotations
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 4)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.embed(ids) * scale

class WithExamples(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, 2)

    def example_inputs(self, num_tokens):
        return (torch.ones(num_tokens, self.linear.in_features),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

def plain():
    return Plain()

def sized(deployment):
    return WithExamples(deployment.block_size)

def broken():
    raise RuntimeError("no luck")

def wrong():
    return 3

def exits():
    raise SystemExit(5)

class Unannotated(nn.Module):
    def forward(self, x):
        return x + 1

def unannotated():
    return Unannotated()

class Beside(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2))

    def example_inputs(self, num_tokens):
        return (torch.empty(num_tokens, 2, device=self.weight.device),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

def beside():
    return Beside()

class BadExamples(WithExamples):
    def example_inputs(self, num_tokens):
        return num_tokens

def bad_examples():
    return BadExamples(2)

number = 4
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_models.py").write_text(MODULE)
    (tmp_path / "toy_broken.py").write_text("import no_such_dependency\n")
    (tmp_path / "toy_raises.py").write_text("1 / 0\n")
    (tmp_path / "toy_exits.py").write_text("raise SystemExit('usage: none')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("toy_models", "toy_broken", "toy_raises", "toy_exits"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def built(name: str, dtype: str = "auto") -> ServedModel:
    deployment = Deployment(name, dtype=dtype)
    return build(identify(deployment), deployment)


def test_the_factory_s_module_is_the_backbone() -> None:
    served = built("toy_models:plain")
    assert type(served.backbone).__name__ == "Plain"
    assert not served.backbone.training
    assert not any(p.requires_grad for p in served.backbone.parameters())
    inputs = served.example_inputs(20)
    assert [(t.dtype, tuple(t.shape)) for t in inputs] == [(torch.int64, (20,))] * 2
    hidden = served.backbone(*inputs)
    assert served.compute_logits(hidden) is hidden
    assert (served.layers, served.vocab_size, served.max_model_len) == ((), None, 2048)


def test_a_factory_may_ask_for_the_deployment_and_give_its_own_inputs() -> None:
    served = built("toy_models:sized", dtype="bfloat16")
    assert served.dtype == torch.bfloat16
    assert [tuple(t.shape) for t in served.example_inputs(3)] == [(3, 16)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("toy_models.sub:make", "there is no module 'toy_models.sub'"),
        ("toy_models:absent", "module toy_models has no 'absent'"),
        ("toy_models:number", "is not callable"),
        ("toy_models:broken", "the factory failed: RuntimeError: no luck"),
        ("toy_models:wrong", "the factory returned a int"),
        ("toy_broken:make", "importing toy_broken failed: No module named 'no_such_dependency'"),
        ("toy_raises:make", "importing toy_raises failed: ZeroDivisionError"),
        ("toy_exits:make", "importing toy_exits failed: SystemExit: usage: none"),
        ("toy_models:exits", "the factory failed: SystemExit: 5"),
        ("toy_models:unannotated", "nothing says what a call of it looks like .*no argument annotated"),
    ],
)
def test_what_is_wrong_with_a_factory_is_named(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        built(name)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_example_inputs_may_lie_beside_a_module_whose_device_is_not_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a process that has become a described device does to its own.
    monkeypatch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None)
    monkeypatch.setattr("torch.cuda._lazy_init", lambda: None)
    deployment, device = Deployment("toy_models:beside"), torch.device("cuda", 0)
    served = build(identify(deployment), deployment, weights="none", device=device)
    assert [(one.device, tuple(one.shape)) for one in served.example_inputs(3)] == [(device, (3, 2))]


def test_example_inputs_that_give_no_call_are_named() -> None:
    with pytest.raises(ModelError, match=r"its example_inputs\(3\) failed: TypeError"):
        built("toy_models:bad_examples").example_inputs(3)


def test_a_root_that_does_not_say_where_its_tokens_are_is_no_part() -> None:
    class Unannotated(torch.nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return x

    with pytest.raises(ModelError, match="Unannotated: nothing says which argument"):
        find_parts(Unannotated(), CompilationConfig(), lambda _: (), 2, lambda _: nullcontext())
