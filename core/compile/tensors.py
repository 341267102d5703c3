"""Tensors as bytes: their digest, and the plain file form in which an artifact keeps its constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from safetensors.torch import load as _load
from safetensors.torch import save as _save


def tensor_digest(value: torch.Tensor) -> str:
    """Returns the SHA-256 of a tensor's elements in logical order, 64 hex digits."""
    flat = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def pack_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns tensors in safetensors form: plain data, nothing in it is executed by a reader."""
    return _save({name: value.detach().to("cpu").contiguous() for name, value in sorted(tensors.items())})


def unpack_tensors(data: bytes) -> dict[str, torch.Tensor]:
    """Returns the tensors of `pack_tensors`, on the CPU and contiguous."""
    return _load(data)
