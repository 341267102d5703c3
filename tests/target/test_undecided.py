"""Operators that the device itself would have to choose for."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from graphkiln.core.errors import NoDevice
from graphkiln.core.target.description import find_description
from graphkiln.core.target.undecided import refuse_undecided


class Attends(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


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


def test_what_is_the_same_on_every_device_is_let_through() -> None:
    refuse_undecided(fx.symbolic_trace(Normalises()), find_description("h200"))
