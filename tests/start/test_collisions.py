"""What could be taken for one another, cold and warm and in both orders: two keys, or a named refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.core import support_torch_compile, use_config
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment

# Products only: they are calls of torch's own, so that no C++ compiler runs.
X = torch.linspace(-1, 1, 28).reshape(7, 4)
Y = torch.linspace(-2, 1, 16).reshape(4, 4)


def first_of_its_name() -> Any:
    @support_torch_compile
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(Y.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    Same.__qualname__ = "Same"
    return Same()


def second_of_its_name() -> Any:
    @support_torch_compile
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(Y.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight @ self.weight

    Same.__qualname__ = "Same"
    return Same()


def _two(twice: bool) -> Any:
    if twice:

        @support_torch_compile
        class Either(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(Y.clone())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x @ self.weight @ self.weight
    else:

        @support_torch_compile
        class Either(nn.Module):  # type: ignore[no-redef]
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(Y.clone())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x @ self.weight

    return Either()


def one_branch() -> Any:
    """A class of two that share module and qualified name."""
    return _two(twice=False)


def other_branch() -> Any:
    return _two(twice=True)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(Y.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Wrapped(nn.Module):
    """What an adapter does to a layer: the weight that was `inner.weight` is `inner.base.weight`."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.delta = nn.Parameter(Y.t().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) @ self.delta
        return result


@support_torch_compile
class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        return result


@support_torch_compile
class Three(nn.Module):
    """Three products and a sum, to be cut at either."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(Y.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x @ self.weight, 1) @ self.weight


CUT = CompilationConfig(splitting_ops=("aten::cumsum",))
UNCUT = CompilationConfig(splitting_ops=())
CASES: dict[str, tuple[tuple[Callable[[], Any], Any], tuple[Callable[[], Any], Any]]] = {
    "two classes of one name": ((first_of_its_name, None), (second_of_its_name, None)),
    "two branches of one function": ((one_branch, None), (other_branch, None)),
    "wrapped layer": ((lambda: Holder(Inner()), None), (lambda: Holder(Wrapped(Inner())), None)),
    "split lists": ((Three, UNCUT), (Three, CUT)),
}


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["one first", "other first"])
@pytest.mark.parametrize("name", CASES)
def test_neither_ever_gets_what_was_compiled_for_the_other(
    name: str, order: tuple[int, int], tmp_path: Path
) -> None:
    for _ in ("cold", "warm"):
        for which in order:
            make, config = CASES[name][which]
            deployment = Deployment("toy", max_num_batched_tokens=64)
            with use_config(config or CompilationConfig(), deployment, cache_root=tmp_path):
                module = make()
            torch.testing.assert_close(module(X), module.forward(X), msg=f"{name} {which}")
    outcomes = [start["outcome"] for start in Store(CacheRoot(tmp_path)).starts()]
    assert outcomes == ["compiled", "compiled", "hit", "hit"]
    assert len({entry.path.name for entry in Store(CacheRoot(tmp_path)).entries()}) == 2
