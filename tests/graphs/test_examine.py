"""The capture check on a made-up device."""

from __future__ import annotations

import pytest

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capturer import Way
from graphkiln.core.graphs.examine import Examination, examine
from graphkiln.core.graphs.plan import GraphRequest, plan_graphs
from graphkiln.core.phases import Phases
from graphkiln.core.report import Silent
from tests.graphs.made import MIB, MadeCapturer

SIZES = (1, 2, 4, 8, 16)
PLAN = plan_graphs(GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, SIZES, max_num_seqs=16))
# 64 + 16 for the first graph, 4 MiB for every graph there is.
WHOLE = (64 + 16 + 4 * 10) * MIB


def _examined(capturer: MadeCapturer) -> Examination:
    return examine(capturer, PLAN, compiled=True, phases=Phases(Silent()))


def test_all_graphs_are_captured_in_order_replayed_in_another_and_given_back() -> None:
    capturer = MadeCapturer()
    found = _examined(capturer)
    # The four probes of the estimate come first.
    assert tuple(capturer.order[4:]) == PLAN.descriptors
    assert set(capturer.replayed) == set(PLAN.descriptors)
    assert tuple(capturer.replayed) != PLAN.descriptors
    assert capturer.taken == 0
    assert found.ok
    assert found.leaked == 0
    assert found.seconds == pytest.approx(0.1)


def test_every_size_is_timed_in_every_way() -> None:
    found = _examined(MadeCapturer())
    assert {(one.way, one.num_tokens) for one in found.times} == {
        (way, size) for way in Way for size in SIZES
    }


def test_the_estimate_is_told_by_mode_and_holds() -> None:
    found = _examined(MadeCapturer())
    assert [(one.mode.name, one.graphs) for one in found.estimates] == [("PIECEWISE", 5), ("FULL", 5)]
    assert sum(one.bytes for one in found.estimates) >= sum(one.bytes for one in found.captured)
    assert found.fitting == SIZES


def test_a_replay_that_differs_from_eager_fails_the_check() -> None:
    found = _examined(MadeCapturer(wrong=PLAN.descriptors[3]))
    assert [one.descriptor for one in found.replayed if not one.ok] == [PLAN.descriptors[3]]
    assert not found.ok


@pytest.mark.parametrize("missing", [1, 4 * MIB, 17 * MIB, 30 * MIB])
def test_without_memory_nothing_is_left_and_the_list_that_is_told_fits(missing: int) -> None:
    capturer = MadeCapturer(free=WHOLE - missing)
    found = _examined(capturer)
    assert capturer.taken == 0
    lack = found.shortage
    assert lack is not None
    assert lack.captured < lack.planned == len(PLAN.descriptors)
    assert lack.measured
    assert 0 < len(lack.sizes) < len(SIZES)
    again = examine(
        MadeCapturer(free=WHOLE - missing),
        PLAN.with_sizes(lack.sizes),
        compiled=True,
        phases=Phases(Silent()),
    )
    assert again.ok


def test_the_estimate_alone_tells_what_fits_where_memory_is_short() -> None:
    found = _examined(MadeCapturer(free=WHOLE - 1))
    assert found.fitting == SIZES[:-1]


def test_a_first_graph_that_does_not_fit_tells_half_of_its_size() -> None:
    found = _examined(MadeCapturer(free=70 * MIB))
    assert found.shortage is not None
    assert found.shortage.sizes == (1, 2, 4, 8)
    assert not found.shortage.measured


def test_memory_that_does_not_come_back_is_told() -> None:
    # Once after the probes, once after the check.
    found = _examined(MadeCapturer(leaks=5 * MIB))
    assert (found.leaked, found.kept) == (10 * MIB, 0)


def test_what_the_driver_keeps_is_told_apart_from_what_was_lost() -> None:
    found = _examined(MadeCapturer(leaks=1 * MIB, keeps=40 * MIB))
    assert (found.leaked, found.kept) == (2 * MIB, 40 * MIB)


def test_graphs_are_given_back_when_a_replay_raises() -> None:
    class Broken(MadeCapturer):
        def replay(self, descriptor: object, seed: int) -> object:  # type: ignore[override]
            raise RuntimeError("an illegal memory access")

    capturer = Broken()
    with pytest.raises(RuntimeError, match="illegal"):
        _examined(capturer)
    assert capturer.taken == 0
