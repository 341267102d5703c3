"""A model that is ready to be compiled and served, whatever it was built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from graphkiln.core.ops.launches import Launches
from graphkiln.core.ops.layer import AttentionLayer

__all__ = ["AttentionLayer", "Origin", "ServedModel", "Weightless", "example_inputs", "without_values"]


@dataclass(frozen=True)
class Origin:
    """Where a built model's tensors came from, as far as they can be had again without building it.

    `weights` is "stored" when each tensor is one of the files under its own name, "random" when it
    comes from the seed. `finders` found the modules of the process when building began, None when
    modeling code had been imported before.
    """

    weights: Literal["stored", "random"]
    finders: tuple[str, ...] | None
    initializer_range: float


@dataclass(frozen=True, eq=False)
class Weightless:
    """What stands behind a model whose tensors are fake: their mode, and the buffers as they are computed."""

    mode: FakeTensorMode
    buffers: Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A decorated backbone, and what a runner needs around it.

    `backbone(input_ids [T], positions [T])` gives hidden states [T, H] for a Hugging Face model or
    a preset; for `module:factory` it is whatever the factory made. `compute_logits` turns hidden
    states [N, H] into logits [N, V]. `example_inputs(T)` gives one call's arguments; positions stay
    below `max_model_len`. `layers` are in the order in which the model runs them, empty when it has
    none of our attention; `launches` are what its entry brought to compute it. `restored` models have
    tensors and no forward that could run; `weightless` ones have a forward, and tensors that have
    shapes and no memory.
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
    origin: Origin | None = None
    restored: bool = False
    weightless: Weightless | None = None
    launches: Launches = field(default_factory=Launches)


def example_inputs(
    vocab_size: int, max_model_len: int, device: torch.device
) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Returns what makes example calls: varied token ids, positions of requests of full length."""

    def make(num_tokens: int) -> tuple[torch.Tensor, ...]:
        at = torch.arange(num_tokens, dtype=torch.int64)
        return ((at * 7919 + 13) % vocab_size).to(device), (at % max_model_len).to(device)

    return make


def without_values(
    make: Callable[[int], tuple[Any, ...]], mode: FakeTensorMode, device: torch.device
) -> Callable[[int], tuple[Any, ...]]:
    """Returns what makes the example calls of `make` as fake tensors on `device`."""

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    return lambda num_tokens: tuple(fake(value) for value in make(num_tokens))
