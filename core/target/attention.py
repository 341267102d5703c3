"""Which kernel torch takes for `scaled_dot_product_attention` on a device: asked on it, read elsewhere.

Private torch calls: `torch._fused_sdp_choice`, which asks the device; tried on torch 2.11.0.
"""

from __future__ import annotations

from itertools import product

import torch

from graphkiln.core.target.description import KERNELS

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_HEAD_SIZES = (32, 64, 80, 96, 128, 192, 256)
_WAYS = ("plain", "causal", "masked")
_TOKENS, _HEADS = 64, 8


def kind(dtype: torch.dtype, head_size: int, way: str) -> str:
    """Returns what a kind of call is called in a description: `bfloat16 128 causal`."""
    return f"{str(dtype).removeprefix('torch.')} {head_size} {way}"


def live_attention() -> dict[str, str]:
    """Returns the kernel for every kind of call, by its name, as torch takes it on the current device."""
    return {
        kind(dtype, size, way): _taken(dtype, size, way)
        for dtype, size, way in product(_DTYPES, _HEAD_SIZES, _WAYS)
    }


def _taken(dtype: torch.dtype, head_size: int, way: str) -> str:
    query = torch.empty(1, _HEADS, _TOKENS, head_size, dtype=dtype, device="cuda")
    mask = torch.zeros(_TOKENS, _TOKENS, dtype=dtype, device="cuda") if way == "masked" else None
    with torch.no_grad():
        choice = torch._fused_sdp_choice(query, query, query, mask, 0.0, way == "causal")
    return KERNELS[int(choice)]
