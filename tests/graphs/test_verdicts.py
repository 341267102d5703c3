"""What measured times say about the sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from graphkiln.core.graphs.capturer import StepTime, Way
from graphkiln.core.graphs.suggest import Suggestion
from graphkiln.core.graphs.verdicts import NO_VERDICTS, Verdicts, judged

SIZES = (1, 2, 4, 8, 16, 32)


def _times(ways: Mapping[Way, Callable[[int], float]], sizes: tuple[int, ...] = SIZES) -> list[StepTime]:
    return [StepTime(way, size, ms(size)) for way, ms in ways.items() for size in sizes]


def _suggestion(verdicts: Verdicts) -> Suggestion:
    assert verdicts.suggestion is not None
    return verdicts.suggestion


def test_graphs_that_are_faster_at_every_size_have_no_complaint() -> None:
    found = judged(_times({Way.COMPILED: lambda n: 5 + n / 10, Way.FULL: lambda n: 1 + n / 10}))
    assert found.padding == ()
    assert found.never_win == ()


def test_padding_that_costs_more_than_it_saves_is_told_with_the_steps_it_hurts() -> None:
    # The work grows with the tokens, so that 17 tokens padded to 32 do nearly twice the work.
    found = judged(_times({Way.COMPILED: lambda n: 1 + n / 10, Way.PIECEWISE: lambda n: 0.5 + n / 10}))
    assert [(loss.way, loss.size, loss.first, loss.last) for loss in found.padding] == [
        ("PIECEWISE", 16, 9, 10),
        ("PIECEWISE", 32, 17, 26),
    ]
    worst = found.padding[1]
    assert worst.graph_ms == pytest.approx(3.7)
    assert worst.plain_ms == pytest.approx(2.7)


def test_compiled_is_what_a_graph_must_beat_and_eager_where_nothing_is_compiled() -> None:
    def graph(tokens: int) -> float:
        return 2.0

    with_compiled = judged(_times({Way.EAGER: lambda n: 9.0, Way.COMPILED: lambda n: 1.0, Way.FULL: graph}))
    assert {one.size for one in with_compiled.never_win} == set(SIZES)
    assert _suggestion(with_compiled).sizes == ()
    eager = judged(_times({Way.EAGER: lambda n: 9.0, Way.FULL: graph}))
    assert 32 not in {one.size for one in eager.never_win}


def test_a_size_that_is_no_faster_than_the_next_never_wins() -> None:
    flat = {1: 1.5, 2: 1.499, 4: 1.6, 8: 1.8, 16: 2.4, 32: 3.0}
    found = judged(_times({Way.COMPILED: lambda n: 5.0, Way.FULL: flat.__getitem__}))
    assert [(one.way, one.size) for one in found.never_win] == [("FULL", 1)]
    assert "2 tokens is as fast" in found.never_win[0].reason
    assert _suggestion(found).sizes == (2, 4, 8, 16, 32)
    assert _suggestion(found).ratio == pytest.approx(1.0, abs=1e-3)


def test_traffic_weighs_the_suggestion() -> None:
    ways = {Way.COMPILED: lambda n: 5.0, Way.FULL: lambda n: 1 + n / 10}
    found = _suggestion(judged(_times(ways), traffic={8: 1000.0, 3: 500.0}))
    # 3 was not measured: its time lies between those of 2 and 4.
    assert found.sizes == (3, 8)
    assert found.interpolated == (3,)
    assert found.counted
    assert found.ratio == pytest.approx((1000 * 1.8 + 500 * 1.3) / (1000 * 1.8 + 500 * 1.4))


def test_a_rare_size_is_not_worth_a_graph_of_its_own() -> None:
    ways = {Way.COMPILED: lambda n: 5.0, Way.FULL: lambda n: 1 + n / 10}
    assert _suggestion(judged(_times(ways), traffic={8: 1e6, 3: 1.0})).sizes == (8,)


def test_steps_larger_than_every_graph_are_told_as_a_share() -> None:
    ways = {Way.COMPILED: lambda n: 5.0, Way.FULL: lambda n: 1 + n / 10}
    assert _suggestion(judged(_times(ways), traffic={8: 3.0, 100: 1.0})).larger == pytest.approx(0.25)


def test_with_drafts_only_whole_steps_of_decode_are_suggested() -> None:
    ways = {Way.COMPILED: lambda n: 5.0, Way.FULL: lambda n: 1 + n / 10}
    found = judged(_times(ways, (3, 6, 12, 24)), decode_length=3, traffic={8: 10.0, 20: 10.0})
    assert _suggestion(found).sizes == (9, 21)


def test_where_decode_is_whole_its_times_count_and_pieces_above_them() -> None:
    times = [
        *_times({Way.COMPILED: lambda n: 5.0, Way.PIECEWISE: lambda n: 2 + n / 10}),
        *_times({Way.FULL: lambda n: 1 + n / 10}, (1, 2, 4)),
    ]
    found = judged(times, traffic={4: 1.0, 16: 1.0}, current=SIZES)
    assert _suggestion(found).sizes == (4, 16)
    assert _suggestion(found).ratio == pytest.approx(1.0)


def test_nothing_is_said_without_graphs_or_without_a_step_to_compare_with() -> None:
    assert judged(_times({Way.EAGER: lambda n: 5.0})) == NO_VERDICTS
    assert judged(_times({Way.FULL: lambda n: 5.0})) == NO_VERDICTS
