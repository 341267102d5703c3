"""One decorated module as a start sees it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.trace.arguments import IntermediateTensors, dynamic_dims


@dataclass(frozen=True)
class Part:
    """One decorated module to compile: its folder name, and example calls by token count.

    `layers` of a model's first part are the attention layers that the whole model declares, where its
    config says nothing of them.
    """

    prefix: str
    module: torch.nn.Module
    arguments: Callable[[int], Sequence[Any]]
    layers: tuple[AttentionLayer, ...] = ()

    @property
    def dynamic(self) -> dict[str, tuple[int, ...]]:
        """The dimensions that vary with the token count."""
        kind = type(self.module)
        # A factory may return a module whose class is not ours to decorate: its annotations say the same.
        dims: dict[str, tuple[int, ...]] | None = getattr(kind, "_graphkiln_dynamic_dims", None)
        return dims if dims is not None else dynamic_dims(kind.forward, None)

    @property
    def encoder(self) -> bool:
        """Whether the scheduler does not bound its calls: an encoder sees images, not tokens of a step."""
        return bool(getattr(type(self.module), "_graphkiln_is_encoder", False))

    @property
    def unbacked(self) -> dict[str, tuple[int, ...]]:
        """Those of them that are traced without a hint."""
        dims: dict[str, tuple[int, ...]] = getattr(type(self.module), "_graphkiln_unbacked_dims", {})
        return dims


def arguments_like(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[int], tuple[Any, ...]]:
    """Returns example calls made after a real one: any token count, its values over and over."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    dims = type(module)._graphkiln_dynamic_dims

    def arguments(count: int) -> tuple[Any, ...]:
        return tuple(_resized(value, dims.get(name, ()), count) for name, value in bound.arguments.items())

    return arguments


def _resized(value: Any, dims: Sequence[int], count: int) -> Any:
    if isinstance(value, IntermediateTensors):
        return IntermediateTensors({key: _resized(item, dims, count) for key, item in value.tensors.items()})
    if not isinstance(value, torch.Tensor):
        return value
    dynamic = {dim % value.dim() for dim in dims}
    resized = value.detach()
    # An index beside a value without memory has none either: its device may not be here.
    with resized.fake_mode if isinstance(resized, FakeTensor) else contextlib.nullcontext():
        for dim in dynamic:
            # Values that were there are valid ones: an index stays in range.
            index = torch.arange(count, device=value.device) % max(value.shape[dim], 1)
            resized = resized.index_select(dim, index)
        return resized.contiguous().clone()
