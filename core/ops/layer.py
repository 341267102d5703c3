"""One attention layer's facts, as the model passes them to its attention function."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionLayer:
    """What the attention ops need to know of a layer besides its tensors.

    `head_size` is of queries and keys, `value_size` of values. `window` is the number of keys a
    query sees, its own included (None: all before it); `softcap` bounds the scores (None: not).
    """

    name: str
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    scale: float
    window: int | None = None
    softcap: float | None = None
