"""Decorated modules in a program of one's own: compiled at first call, kept apart, held to their calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.core import ignore_torch_compile, support_torch_compile, use_config
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError, DoorError
from graphkiln.core.trace.arguments import IntermediateTensors


@support_torch_compile
class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).sin()


@support_torch_compile
class SqueezesAtTheEnd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).squeeze(0)


@support_torch_compile
class Everything(nn.Module):
    """Gives back one of each structure that a forward may give back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def forward(
        self, x: torch.Tensor, factor: float = 2.0, *, shift: torch.Tensor | None = None
    ) -> dict[str, Any]:
        y = x * factor + self.weight
        return {
            "tuple": (y, y.cos()),
            "list": [y.sum(1), None, "text", 3],
            "between": IntermediateTensors({"hidden": y.exp()}),
            "argument": x,
            "view": y.view(-1, 2, 2),
            "twice": y,
        }


@support_torch_compile
class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + 1


class Output:
    """Like what transformers returns: an object that only its own code could build again."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


@support_torch_compile
class ReturnsAnObject(nn.Module):
    def forward(self, x: torch.Tensor) -> Output:
        return Output(x + 1)


@support_torch_compile
class ReturnsItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.weight, self.weight


@ignore_torch_compile
@support_torch_compile
class Ignored(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def outcomes(root: Path) -> list[str]:
    return [start["outcome"] for start in Store(CacheRoot(root)).starts()]


def built(make: Callable[[], Any], root: Path) -> Any:
    with use_config(deployment=Deployment("toy", max_num_batched_tokens=64), cache_root=root):
        return make()


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("order", [(2.0, 3.0), (3.0, 2.0)], ids=str)
def test_two_instances_that_differ_in_an_attribute_are_two_entries(
    order: tuple[float, float], tmp_path: Path
) -> None:
    x = torch.linspace(-1, 1, 28).reshape(7, 4)
    for warm in (False, True):
        for scale in order:
            module = built(functools.partial(Scaled, scale), tmp_path)
            torch.testing.assert_close(module(x), (x * scale).sin())
            module.scale = 17.0  # what is compiled for one instance is not asked for another
        assert outcomes(tmp_path) == ["compiled", "compiled", "hit", "hit"][: 4 if warm else 2]
    assert len(Store(CacheRoot(tmp_path)).entries()) == 2
    assert len({entry.lookup for entry in Store(CacheRoot(tmp_path))._sound()}) == 1


def test_a_model_that_does_something_else_for_one_token_refuses_one(tmp_path: Path) -> None:
    module = built(SqueezesAtTheEnd, tmp_path)
    torch.testing.assert_close(module(torch.ones(2, 4)), torch.full((2, 4), 3.0))
    with pytest.raises(DoorError, match=r"token count: compiled for 2 to 64, called with 1"):
        module(torch.ones(1, 4))


def test_results_have_the_structure_that_forward_gave_them(tmp_path: Path) -> None:
    module = built(Everything, tmp_path)
    x = torch.linspace(-1, 1, 20).reshape(5, 4)
    wanted = module.forward(x)
    calls: list[tuple[list[Any], dict[str, Any]]] = [
        ([x], {}),
        ([], {"x": x}),
        ([x, 2.0], {}),
        ([x], {"factor": 2.0}),
    ]
    for args, kwargs in calls:
        got = module(*args, **kwargs)
        assert list(got) == list(wanted)
        assert type(got["tuple"]) is tuple
        assert got["list"][1:] == [None, "text", 3]
        assert got["argument"] is x
        assert isinstance(got["between"], IntermediateTensors)
        torch.testing.assert_close(got["between"].tensors, wanted["between"].tensors)
        for name in ("tuple", "view", "twice"):
            torch.testing.assert_close(got[name], wanted[name])
        torch.testing.assert_close(got["list"][0], wanted["list"][0])
    assert outcomes(tmp_path) == ["compiled"]
    with pytest.raises(DoorError, match="factor"):
        module(x, 3.0)
    with pytest.raises(DoorError, match="shift"):
        module(x, shift=x)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Counts, "its forward changes self"),
        (ReturnsAnObject, "it returns a .*Output"),
        (ReturnsItsWeight, "it returns a .*Parameter"),
    ],
    ids=["side effect", "object", "parameter"],
)
def test_what_a_compiled_call_could_not_do_is_refused_by_name(
    make: Callable[[], nn.Module], says: str, tmp_path: Path
) -> None:
    module = built(make, tmp_path)
    with pytest.raises(CompileError, match=says):
        module(torch.ones(5, 4))
    assert outcomes(tmp_path) == []


def test_classes_that_are_not_compiled_run_as_they_are(tmp_path: Path) -> None:
    x = torch.ones(3, 4)
    assert torch.equal(built(Ignored, tmp_path)(x), x + 1)
    with use_config(CompilationConfig(optimization_level=0), cache_root=tmp_path):
        module = Scaled(2.0)
    torch.testing.assert_close(module(x), (x * 2).sin())
    torch.testing.assert_close(Scaled(3.0)(x), (x * 3).sin())
    assert list(tmp_path.iterdir()) == []
