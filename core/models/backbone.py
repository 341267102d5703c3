"""The compiled part of a Hugging Face model."""

from __future__ import annotations

import torch
from torch import nn

from graphkiln.core.trace.decorator import support_torch_compile


@support_torch_compile
class Backbone(nn.Module):
    """A transformers base model over a flat run of tokens: no batch, no cache, no mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Returns the hidden states [T, H] of `input_ids` [T] at `positions` [T]."""
        output = self.model(
            input_ids=input_ids[None], position_ids=positions[None], use_cache=False, return_dict=True
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden
