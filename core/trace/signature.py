"""Names, shapes and dtypes of a model's parameters and buffers; never their values or their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphkiln.cache.factors.difference import Difference

Signature = list[list[Any]]
_FIELDS = ("kind", "name", "dtype", "shape", "stride", "offset", "tied to", "persistent")


def parameter_signature(module: torch.nn.Module) -> Signature:
    """Returns `[kind, name, dtype, shape, stride, offset, tied to, persistent]` a tensor, by name.

    `tied to` is the first name of the same tensor. `requires_grad` is left out: loaders differ in it
    and serving runs without gradients.
    """
    first: dict[int, str] = {}
    rows: Signature = []
    for kind, named in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            owner = first.setdefault(id(tensor), name)
            rows.append(
                [
                    kind, name, str(tensor.dtype), list(tensor.shape), list(tensor.stride()),
                    int(tensor.storage_offset()), None if owner == name else owner,
                    _persistent(module, name) if kind == "buffer" else None,
                ]
            )  # fmt: skip
    return sorted(rows, key=lambda row: (row[0], row[1]))


def _persistent(module: torch.nn.Module, name: str) -> bool:
    owner, _, leaf = name.rpartition(".")
    return leaf not in module.get_submodule(owner)._non_persistent_buffers_set


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns every parameter and buffer by each of its names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def check_signature(then: Sequence[Sequence[Any]], module: torch.nn.Module) -> list[Difference]:
    """Returns how the live parameters and buffers differ from a recorded signature."""
    before: Mapping[str, Sequence[Any]] = {str(row[1]): row for row in then}
    after: Mapping[str, Sequence[Any]] = {str(row[1]): row for row in parameter_signature(module)}
    found = []
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            remedy = "load the model that the entry was compiled for, or compile again"
            kind = "added" if one is None else "removed"
            found.append(
                Difference(
                    "code",
                    f"parameter {name}",
                    _shape(one),
                    _shape(other),
                    remedy=remedy,
                    kind=kind,  # type: ignore[arg-type]
                )
            )
            continue
        for index, title in enumerate(_FIELDS):
            if list_of(one[index]) != list_of(other[index]):
                found.append(
                    Difference(
                        "code", f"parameter {name} {title}", one[index], other[index], remedy="compile again"
                    )
                )
    return found


def list_of(value: Any) -> Any:
    """Returns sequences as lists, so that what came from JSON and what did not compare."""
    return list(value) if isinstance(value, (list, tuple)) else value


def _shape(row: Sequence[Any] | None) -> Any:
    return None if row is None else f"{row[2]} {list(row[3])}"
