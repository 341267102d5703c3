"""The numeric check: compiled pieces against eager at several token counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from graphkiln.core.config.ranges import CompileRange
from graphkiln.core.report import CheckReport, CheckRow
from graphkiln.core.trace.arguments import by_position_and_name

# Of the largest absolute value of eager's output. float32 differs by the order of its sums; the
# narrow types by their rounding, a few units in the last place through tens of layers: 0.07 was the
# most of 30 layers of random bfloat16 weights on an H200, where what is wrong differs by about 1.
_RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-8, torch.bfloat16: 1e-1, torch.float16: 1e-2}


# Enough to go through full vectors, their tails, and more rows than threads; eager attention on a
# CPU takes minutes for thousands of tokens.
_MOST_CHECKED = 256


def check_counts(ranges: Sequence[CompileRange]) -> list[int]:
    """Returns the token counts that a check tries: odd ones, and the ends of every range, up to 256."""
    smallest, largest = min(found.start for found in ranges), max(found.end for found in ranges)
    top = min(largest, _MOST_CHECKED)
    ends = {count for found in ranges for count in (found.start, found.end) if count <= top}
    return sorted({smallest, top, *ends, *(count for count in (2, 7, 64) if smallest <= count <= top)})


def check_part(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    arguments: Callable[[int], Sequence[Any]],
    context: Callable[[int], AbstractContextManager[Any]],
    counts: Sequence[int],
) -> CheckReport:
    """Returns compiled against eager on the same inputs at each token count, each in a context of its own."""
    rows = []
    for count in counts:
        inputs = arguments(count)
        args, kwargs = by_position_and_name(eager, inputs)
        with torch.no_grad():
            with context(count):
                wanted = eager(*args, **kwargs)
            with context(count):
                got = compiled(*inputs)
        rows.append(_row(count, tree_leaves(got), tree_leaves(wanted)))
    return CheckReport(tuple(rows))


def _row(count: int, got: Sequence[Any], wanted: Sequence[Any]) -> CheckRow:
    """Returns the output that comes closest to its limit, or is furthest beyond it."""
    rows = [_compare(count, one, other) for one, other in zip(got, wanted, strict=True)]
    return max(rows, key=_strain, default=CheckRow(count, 0.0, 0.0))


def _compare(count: int, one: Any, other: Any) -> CheckRow:
    if not isinstance(other, torch.Tensor):
        return CheckRow(count, 0.0 if one == other else math.inf, 0.0)
    if one.shape != other.shape or one.dtype != other.dtype:
        return CheckRow(count, math.inf, 0.0)
    if not other.numel():
        return CheckRow(count, 0.0, 0.0)
    return CheckRow(count, *compared(one, other))


def compared(got: torch.Tensor, eager: torch.Tensor) -> tuple[float, float]:
    """Returns the largest difference of a tensor from eager's, and the largest that is allowed."""
    error = float((got.double() - eager.double()).abs().max())
    return error, _RELATIVE.get(eager.dtype, 0.0) * max(1.0, float(eager.double().abs().max()))


def _strain(row: CheckRow) -> float:
    if math.isnan(row.max_abs_error):
        return math.inf
    return row.max_abs_error / row.tolerance if row.tolerance else (0.0 if row.ok else math.inf)
