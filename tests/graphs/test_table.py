"""The dispatch rule, spelled out in rows."""

from __future__ import annotations

from graphkiln.core.config.modes import CUDAGraphMode
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


def test_a_traffic_is_padded_by_the_dispatch_rule() -> None:
    assert served_by({1: 2, 3: 1, 9: 1}, (1, 2, 4, 8)) == Served(4, 1 - 14 / 15, 0.25)
