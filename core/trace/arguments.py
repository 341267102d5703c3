"""Which arguments of a `forward` have a token dimension: read from its annotations once, at decoration."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import torch

DynamicDims = Mapping[str, tuple[int, ...]]


class IntermediateTensors:
    """Hidden states that travel between pipeline stages: a mapping of names to tensors `[T, ...]`."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __len__(self) -> int:
        return len(self.tensors)


def dynamic_dims(
    forward: Callable[..., Any], given: Mapping[str, int | list[int]] | None
) -> dict[str, tuple[int, ...]]:
    """Returns `{argument: dims}` of the dimensions that vary with the token count.

    `given` is what the decorator was told; without it every argument whose annotation is a tensor,
    `IntermediateTensors`, or either of them or None, has dim 0. String annotations are resolved.
    Raises ValueError when nothing is left, or when `given` names no parameter of `forward`.
    """
    parameters = [name for name in inspect.signature(forward).parameters if name != "self"]
    if given is not None:
        unknown = sorted(set(given) - set(parameters))
        if unknown:
            raise ValueError(
                f"dynamic_arg_dims: {unknown[0]!r} is no argument of {forward.__qualname__}, "
                f"which takes {', '.join(parameters)}"
            )
        return {name: (dims,) if isinstance(dims, int) else tuple(dims) for name, dims in given.items()}
    hints = _annotations(forward)
    found: dict[str, tuple[int, ...]] = {name: (0,) for name in parameters if _is_tensor(hints.get(name))}
    if not found:
        raise ValueError(
            f"{forward.__qualname__} has no argument annotated as a tensor: "
            "annotate one, or pass dynamic_arg_dims"
        )
    return found


def by_position_and_name(
    forward: Callable[..., Any], values: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns a call's arguments of values in the order of the parameters: some may be by keyword alone."""
    parameters = [item for item in inspect.signature(forward).parameters.values() if item.name != "self"]
    given = list(zip(parameters, values, strict=False))
    named = {item.name: value for item, value in given if item.kind is item.KEYWORD_ONLY}
    return tuple(values[: len(values) - len(named)]), named


def _annotations(forward: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(forward)
    except NameError:
        # A name that exists for the type checker only: resolve the annotations one by one.
        hints: dict[str, Any] = {}
        for name, annotation in inspect.get_annotations(forward).items():
            if isinstance(annotation, str):
                namespace = {"torch": torch, "Optional": typing.Optional, **forward.__globals__}
                try:
                    hints[name] = eval(annotation, namespace)
                except NameError:
                    continue
            else:
                hints[name] = annotation
        return hints


def _is_tensor(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        return len(members) == 1 and _is_tensor(members[0])
    return annotation in (torch.Tensor, torch.FloatTensor, IntermediateTensors)
