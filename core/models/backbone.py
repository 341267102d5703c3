"""The compiled part of a Hugging Face model, and the head around it."""

from __future__ import annotations

from typing import Any

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


class LogitsHead:
    """What a causal language model does after its base model: the head's matrix, scales and softcaps.

    The model's own forward is used, with a stand-in for the base model that hands hidden states
    through, so that no architecture's way to logits is repeated here.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.prefix: str = model.base_model_prefix
        # Asked while the base model is there: transformers looks for the input embeddings first.
        self._output_layer = model.get_output_embeddings()
        setattr(model, self.prefix, _GivenHiddenStates())

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits [N, V] of hidden states [N, H]."""
        logits: torch.Tensor = self._model(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the parameters around the base model, by their names in the whole model."""
        return dict(self._model.named_parameters())

    def single_matrix(self) -> torch.Tensor | None:
        """Returns the matrix that hidden states are multiplied with, if that is all that is done."""
        matrix: torch.Tensor | None = getattr(self._output_layer, "weight", None)
        if matrix is None or matrix.dim() != 2:
            return None
        # Large values show scales and softcaps, and a bias shows at any size.
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(5, matrix.shape[1], generator=generator).mul_(100.0).to(matrix.dtype)
        with torch.no_grad():
            alone = torch.equal(self(hidden), nn.functional.linear(hidden, matrix))
        return matrix if alone else None


class _GivenHiddenStates(nn.Module):
    """A base model whose hidden states are its input embeddings."""

    @property
    def decoder(self) -> nn.Module:
        # OPT's head calls the decoder inside its base model.
        return self

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> _BaseOutput:
        return _BaseOutput(inputs_embeds)


class _BaseOutput:
    """A base model's output that has hidden states and nothing else."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
