"""Whether a mask function of transformers is the causal one, with or without a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_QUERIES = (0, 1, 2, 5, 100, 511, 512, 8191, 8192, 1_000_003)


def describes(mask_function: Callable[..., Any], window: int | None) -> bool:
    """Returns whether `mask_function(batch, head, query, key)` is causal attention over `window` keys.

    It is asked at the edges: around the diagonal, around the window, and far from both, where masks
    of another kind (chunks, prefixes, both directions) differ.
    """
    queries, keys = _places(window)
    zero = torch.zeros((), dtype=torch.int64)
    try:
        seen = mask_function(zero, zero, queries, keys)
    except Exception:
        # A function that cannot be asked at a place is not known to be the causal one.
        return False
    expected = keys <= queries
    if window is not None:
        expected &= keys > queries - window
    return isinstance(seen, torch.Tensor) and torch.equal(seen.expand_as(expected).bool(), expected)


def _places(window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    near = {0} if window is None else {0, window, 2 * window}
    pairs = set()
    for query in {*_QUERIES, *near, *(at + 1 for at in near)}:
        for distance in (
            -7,
            -1,
            0,
            1,
            2,
            query // 2,
            query,
            *near,
            *(at + 1 for at in near),
            *(at - 1 for at in near),
        ):
            if query - distance >= 0:
                pairs.add((query, query - distance))
    places = torch.tensor(sorted(pairs), dtype=torch.int64)
    return places[:, 0], places[:, 1]
