"""The numeric check: compiled pieces against eager at several token counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from graphkiln.core.compile.rounding import NARROW, rounded_otherwise
from graphkiln.core.config.ranges import CompileRange
from graphkiln.core.report import CheckReport, CheckRow
from graphkiln.core.trace.arguments import by_position_and_name

# Of the largest absolute value of eager's output. float32 differs by the order of its sums, the narrow
# types by their rounding too: by a few units in the last place here, and else by what `rounding` measures.
_RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-8, torch.bfloat16: 2e-2, torch.float16: 2.5e-3}
# Two computations that are right are as far from one another as two that are rounded otherwise. A
# largest difference is one draw of many: twice it was never reached by what is right.
_TIMES_ROUNDING = 2.0

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
    module: torch.nn.Module,
    arguments: Callable[[int], Sequence[Any]],
    context: Callable[[int], AbstractContextManager[Any]],
    counts: Sequence[int],
) -> CheckReport:
    """Returns compiled against a module's forward on the same inputs at each token count.

    Each runs in a context of its own.
    """
    rows = []
    for count in counts:
        inputs = arguments(count)

        def eager(count: int = count, inputs: Sequence[Any] = inputs) -> list[Any]:
            args, kwargs = by_position_and_name(module.forward, inputs)
            with context(count):
                return tree_leaves(module.forward(*args, **kwargs))

        with torch.no_grad():
            wanted = eager()
            with context(count):
                got = tree_leaves(compiled(*inputs))
            compared_all = [_compare(count, one, other) for one, other in zip(got, wanted, strict=True)]
            if not all(row.ok for row in compared_all):
                with rounded_otherwise(module):
                    again = eager()
                compared_all = [
                    _widened(row, one, other)
                    for row, one, other in zip(compared_all, wanted, again, strict=True)
                ]
        # The output that comes closest to its limit, or is furthest beyond it.
        rows.append(max(compared_all, key=_strain, default=CheckRow(count, 0.0, 0.0)))
    return CheckReport(tuple(rows))


def _compare(count: int, one: Any, other: Any) -> CheckRow:
    if not isinstance(other, torch.Tensor):
        return CheckRow(count, 0.0 if one == other else math.inf, 0.0)
    if one.shape != other.shape or one.dtype != other.dtype:
        return CheckRow(count, math.inf, 0.0)
    if not other.numel():
        return CheckRow(count, 0.0, 0.0)
    return CheckRow(count, *compared(one, other))


def _widened(row: CheckRow, eager: Any, rounded: Any) -> CheckRow:
    return replace(row, tolerance=max(row.tolerance, carried(eager, rounded)))


def carried(eager: Any, rounded: Any) -> float:
    """Returns the difference that rounding explains, of eager's output and the same rounded otherwise."""
    if not isinstance(eager, torch.Tensor) or eager.dtype not in NARROW or not eager.numel():
        return 0.0
    found = _TIMES_ROUNDING * float((rounded.double() - eager.double()).abs().max())
    # What overflows when it is rounded otherwise says nothing of what is right.
    return found if math.isfinite(found) else 0.0


def compared(got: torch.Tensor, eager: torch.Tensor) -> tuple[float, float]:
    """Returns the largest difference of a tensor from eager's, and what is allowed of any model.

    Equal infinities differ by nothing, others by infinity; a NaN is equal to nothing.
    """
    error = float((got.double() - eager.double()).abs().masked_fill(got == eager, 0.0).max())
    sizes = eager.double().abs()
    largest = float(sizes.masked_fill(~sizes.isfinite(), 0.0).max())
    return error, _RELATIVE.get(eager.dtype, 0.0) * max(1.0, largest)


def _strain(row: CheckRow) -> float:
    if math.isnan(row.max_abs_error):
        return math.inf
    return row.max_abs_error / row.tolerance if row.tolerance else (0.0 if row.ok else math.inf)
