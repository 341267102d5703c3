"""The dispatch rule, spelled out in rows."""

from __future__ import annotations

from typing import Any

import pytest

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import Step
from graphkiln.core.graphs.dispatch import Dispatcher
from graphkiln.core.graphs.plan import GraphRequest, plan_graphs
from graphkiln.core.graphs.table import DispatchRow, dispatch_table
from graphkiln.core.graphs.traffic import Served, served_by


def _rows(mode: str, **request: object) -> list[tuple[str, int, int, str, int | None]]:
    plan = plan_graphs(GraphRequest(CUDAGraphMode[mode], (1, 2, 4, 8), 4, **request))  # type: ignore[arg-type]
    rows = dispatch_table(plan, 64)
    return [(row.kind, row.first, row.last, row.mode, row.num_tokens) for row in rows]


def test_every_step_is_in_one_row_of_its_kind() -> None:
    assert _rows("FULL_AND_PIECEWISE") == [
        ("decode", 1, 1, "FULL", 1),
        ("decode", 2, 2, "FULL", 2),
        ("decode", 3, 4, "FULL", 4),
        ("mixed", 1, 1, "PIECEWISE", 1),
        ("mixed", 2, 2, "PIECEWISE", 2),
        ("mixed", 3, 4, "PIECEWISE", 4),
        ("mixed", 5, 8, "PIECEWISE", 8),
        ("mixed", 9, 64, "NONE", None),
    ]


def test_decode_only_leaves_mixed_steps_as_they_are() -> None:
    assert _rows("FULL_DECODE_ONLY")[-1] == ("mixed", 1, 64, "NONE", None)
    assert {row[3] for row in _rows("FULL_DECODE_ONLY")[:-1]} == {"FULL"}


def test_with_drafts_decode_comes_in_whole_requests() -> None:
    decode = [row for row in _rows("FULL_AND_PIECEWISE", decode_lengths=(2,)) if row[0] == "decode"]
    assert decode == [
        ("decode", 2, 2, "FULL", 2),
        ("decode", 4, 4, "FULL", 4),
        ("decode", 6, 8, "FULL", 8),
    ]


def test_without_graphs_there_is_one_row_for_each_kind() -> None:
    plan = plan_graphs(GraphRequest(CUDAGraphMode.NONE, (), 4))
    assert dispatch_table(plan, 64) == (
        DispatchRow("decode", 1, 1, 4, "NONE", None, None),
        DispatchRow("mixed", None, 1, 64, "NONE", None, None),
    )


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize(
    "more", [{}, {"decode_lengths": (3,)}, {"decode_lengths": (2, 4), "varlen_decode": True}]
)
def test_every_step_gets_what_its_row_says(mode: str, more: dict[str, Any]) -> None:
    plan = plan_graphs(GraphRequest(CUDAGraphMode[mode], (1, 2, 4, 8, 24), 7, **more))
    rows, dispatcher = dispatch_table(plan, 40), Dispatcher(plan.descriptors)
    for length in (*plan.request.decode_lengths, None):
        for count in range(1, 41 if length is None else 8):
            step = (
                Step(min(count, 7), count) if length is None else Step(count, count * length, length, length)
            )
            if step.num_tokens > 40:
                continue
            served = dispatcher.dispatch(step)
            wanted = served.num_tokens if served.mode is not CUDAGraphMode.NONE else None
            (row,) = (
                row for row in rows if row.length == length and row.first <= step.num_tokens <= row.last
            )
            assert (row.mode, row.num_tokens) == (served.mode.name, wanted)


def test_no_row_is_longer_to_make_for_the_steps_it_stands_for() -> None:
    most = 2**31 - 1
    plan = plan_graphs(GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, (1, 8, most - 1), most))
    assert [(row.kind, row.first, row.last, row.mode) for row in dispatch_table(plan, most)] == [
        (kind, *row)
        for kind, mode in (("decode", "FULL"), ("mixed", "PIECEWISE"))
        for row in ((1, 1, mode), (2, 8, mode), (9, most - 1, mode), (most, most, "NONE"))
    ]


def test_a_traffic_is_padded_by_the_dispatch_rule() -> None:
    assert served_by({1: 2, 3: 1, 9: 1}, (1, 2, 4, 8)) == Served(4, 1 - 14 / 15, 0.25)
