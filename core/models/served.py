"""A model that is ready to be compiled and served, whatever it was built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from graphkiln.core.ops.layer import AttentionLayer

__all__ = ["AttentionLayer", "ServedModel"]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A decorated backbone, and what a runner needs around it.

    `backbone(input_ids [T], positions [T])` gives hidden states [T, H] for a Hugging Face model or
    a preset; for `module:factory` it is whatever the factory made. `compute_logits` turns hidden
    states [N, H] into logits [N, V]. `example_inputs(T)` gives one call's arguments; positions stay
    below `max_model_len`. `layers` are in the order in which the model runs them, empty when it has
    none of our attention.
    """

    backbone: nn.Module
    compute_logits: Callable[[torch.Tensor], torch.Tensor]
    example_inputs: Callable[[int], tuple[torch.Tensor, ...]]
    layers: tuple[AttentionLayer, ...]
    vocab_size: int | None
    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    stop_ids: tuple[int, ...] = ()
