"""Operators that the device itself would have to choose for."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from graphkiln.core.errors import NoDevice
from graphkiln.core.target.described import wanted_it
from graphkiln.core.target.description import find_description
from graphkiln.core.target.undecided import refuse_undecided


class Attends(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Tabulates(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.new_tensor([1.0, 2.0])


class Normalises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x.softmax(-1) @ x, (4,))


def test_attention_that_the_device_would_choose_a_kernel_for_is_refused_by_name() -> None:
    with pytest.raises(NoDevice, match="scaled_dot_product_attention cannot be compiled where it is not"):
        refuse_undecided(fx.symbolic_trace(Attends()), find_description("h200"))
    from torch.fx.experimental.proxy_tensor import make_fx

    lowered = make_fx(
        lambda x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, True), pre_dispatch=True
    )
    with pytest.raises(NoDevice, match="batch_norm"):
        refuse_undecided(lowered(torch.ones(2, 3, 4)), find_description("h200"))


def test_values_that_a_trace_would_put_on_the_device_are_refused_by_name() -> None:
    with pytest.raises(NoDevice, match="new_tensor puts values on the device while it is traced") as caught:
        refuse_undecided(fx.symbolic_trace(Tabulates()), find_description("h200"))
    assert "a buffer of the module" in caught.value.remedy
    graph = fx.Graph()
    graph.output(graph.call_function(torch.tensor, ([1.0],), {"device": torch.device("cuda", 0)}))
    with pytest.raises(NoDevice, match="tensor puts values"):
        refuse_undecided(fx.GraphModule({}, graph), find_description("h200"))


def test_what_torch_wanted_of_the_device_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "Could not run 'aten::empty_strided' with arguments from the 'CUDA' backend. This could be because"
    assert wanted_it(RuntimeError(told)) is None
    monkeypatch.setattr("graphkiln.core.target.described._become", [find_description("h200")])
    assert "wanted to run aten::empty_strided on the device" in str(wanted_it(RuntimeError(told)))
    assert "wanted to use the device" in str(
        wanted_it(RuntimeError("Found no NVIDIA driver on your system."))
    )
    assert wanted_it(RuntimeError("something else")) is None


def test_what_is_the_same_on_every_device_is_let_through() -> None:
    refuse_undecided(fx.symbolic_trace(Normalises()), find_description("h200"))
