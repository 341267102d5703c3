"""Ranks that agree on a step, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.agreement import Agreed, Agreement, GroupRanks, Ranks
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step
from graphkiln.core.graphs.dispatch import Dispatcher
from graphkiln.core.graphs.plan import GraphRequest, Microbatches, plan_graphs

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
SIZES = (1, 2, 4, 8, 16, 24)
CAPTURED = Dispatcher(plan_graphs(GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, SIZES, 8)).descriptors)


class InMemory:
    """A group whose ranks are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sums = 0
        self._barrier = threading.Barrier(size, timeout=30)
        self._brought: dict[int, list[int]] = {}

    def of(self, rank: int) -> InMemoryRank:
        return InMemoryRank(self, rank)

    def add(self, rank: int, values: Sequence[int]) -> list[int]:
        self._brought[rank] = list(values)
        if self._barrier.wait() == 0:
            self.sums += 1
        found = [sum(column) for column in zip(*self._brought.values(), strict=True)]
        # Nobody brings the next values before all have read these.
        self._barrier.wait()
        return found


class InMemoryRank:
    """One rank of an InMemory group."""

    def __init__(self, group: InMemory, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.size = group.size

    def all_reduce_sum(self, values: Sequence[int]) -> list[int]:
        return self._group.add(self.rank, values)


def _agreed(*steps: Step, dispatchers: Sequence[Dispatcher] = ()) -> list[Agreed]:
    group = InMemory(len(steps))
    found = _on_every_rank(group.of, steps, dispatchers or [CAPTURED] * len(steps))
    assert group.sums == 1
    return found


def _on_every_rank(
    ranks: Callable[[int], Ranks], steps: Sequence[Step], dispatchers: Sequence[Dispatcher]
) -> list[Agreed]:
    with ThreadPoolExecutor(len(steps)) as pool:
        waiting = [
            pool.submit(Agreement(dispatchers[rank], ranks(rank)).agree, step)
            for rank, step in enumerate(steps)
        ]
        return [one.result(timeout=60) for one in waiting]


def test_uniform_decode_runs_in_the_graph_of_the_most_tokens() -> None:
    found = _agreed(Step(3, 3, 1, 1), Step(7, 7, 1, 1))
    assert [one.graph for one in found] == [BatchDescriptor(FULL, 8, 8, 1)] * 2
    assert [(one.tokens, one.requests) for one in found] == [((8, 8), (3, 7))] * 2


def test_one_rank_with_a_prefill_brings_all_to_pieces() -> None:
    found = _agreed(Step(3, 3, 1, 1), Step(2, 12))
    assert [one.graph for one in found] == [BatchDescriptor(PIECEWISE, 16)] * 2


def test_decode_of_two_lengths_is_not_uniform_together() -> None:
    plan = plan_graphs(GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, SIZES, 8, decode_lengths=(2, 4)))
    dispatcher = Dispatcher(plan.descriptors)
    found = _agreed(Step(2, 4, 2, 2), Step(1, 4, 4, 4), dispatchers=[dispatcher] * 2)
    assert [one.graph for one in found] == [BatchDescriptor(PIECEWISE, 4)] * 2


def test_one_rank_without_a_graph_makes_all_run_eagerly_and_unpadded() -> None:
    found = _agreed(Step(3, 3, 1, 1), Step(1, 30))
    assert [one.graph for one in found] == [BatchDescriptor(NONE, 3, 3), BatchDescriptor(NONE, 30, 1)]
    assert found[0].tokens == (3, 30)
    # A rank whose capture failed has no graph for any step.
    alone = _agreed(Step(3, 3, 1, 1), Step(3, 3, 1, 1), dispatchers=[CAPTURED, Dispatcher(())])
    assert [one.graph for one in alone] == [BatchDescriptor(NONE, 3, 3)] * 2


def test_varlen_decode_is_bounded_by_the_longest_request_of_any_rank() -> None:
    request = GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, SIZES, 8, (3,), varlen_decode=True)
    dispatchers = [Dispatcher(plan_graphs(request).descriptors)] * 2
    both = _agreed(Step(2, 4, None, 3), Step(2, 3, None, 2), dispatchers=dispatchers)
    assert [one.graph for one in both] == [BatchDescriptor(FULL, 4, 4, max_query_len=3)] * 2
    prefill = _agreed(Step(2, 4, None, 3), Step(2, 3), dispatchers=dispatchers)
    assert [one.graph for one in prefill] == [BatchDescriptor(PIECEWISE, 4)] * 2


def test_a_rank_keeps_its_own_requests_and_adapters() -> None:
    plan = plan_graphs(GraphRequest(CUDAGraphMode.FULL_AND_PIECEWISE, SIZES, 8, lora_cases=(0, 3)))
    dispatcher = Dispatcher(plan.descriptors, plan.lora_cases)
    found = _agreed(
        Step(3, 3, 1, 1, num_active_loras=2), Step(7, 7, 1, 1), dispatchers=[dispatcher, dispatcher]
    )
    assert [one.graph.num_active_loras for one in found if one.graph] == [3, 0]
    assert [one.graph.num_tokens for one in found if one.graph] == [8, 8]


def test_microbatches_are_used_where_every_rank_votes_for_them() -> None:
    request = GraphRequest(CUDAGraphMode.FULL_DECODE_ONLY, SIZES, 8, microbatches=Microbatches(2, 2))
    dispatchers = [Dispatcher(plan_graphs(request).descriptors)] * 2
    split, whole = Step(8, 8, 1, 1, num_ubatches=2), Step(8, 8, 1, 1)
    both = _agreed(split, split, dispatchers=dispatchers)
    assert [one.graph for one in both] == [BatchDescriptor(FULL, 8, 8, 1, num_ubatches=2)] * 2
    one = _agreed(split, whole, dispatchers=dispatchers)
    assert [found.graph for found in one] == [BatchDescriptor(FULL, 8, 8, 1)] * 2


def test_without_tokens_anywhere_there_is_no_work() -> None:
    assert [one.graph for one in _agreed(Step(0, 0), Step(0, 0))] == [None, None]


def test_a_rank_without_tokens_runs_the_graph_of_the_others() -> None:
    found = _agreed(Step(0, 0), Step(7, 7, 1, 1))
    assert [one.graph for one in found] == [BatchDescriptor(FULL, 8, 8, 1)] * 2


def test_an_agreement_serves_the_same_batch_again_and_no_other() -> None:
    found = _agreed(Step(3, 3, 1, 1), Step(7, 7, 1, 1))[0]
    assert found.again(Step(3, 3, 1, 1)) is found
    with pytest.raises(ValueError, match="another batch"):
        found.again(Step(4, 4, 1, 1))


def test_a_caller_who_knows_that_all_are_alike_needs_no_sum() -> None:
    group = InMemory(2)
    found = Agreement(CAPTURED, group.of(0)).agree(Step(3, 3, 1, 1), coordinate=False)
    assert found.graph == BatchDescriptor(FULL, 4, 4, 1)
    assert found.tokens == (4, 4)
    assert group.sums == 0


def test_the_ranks_of_a_process_group_agree() -> None:
    store = HashStore()

    def rank(number: int) -> Ranks:
        group = ProcessGroupGloo(store, number, 2, timedelta(seconds=30))
        # A backend answers as the group that is made of it does.
        return GroupRanks(group, torch.device("cpu"))  # type: ignore[arg-type]

    # A group is complete when both have joined it, so that each joins in its own thread.
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(rank, range(2)))
    assert [(one.rank, one.size) for one in ranks] == [(0, 2), (1, 2)]
    steps = [Step(3, 3, 1, 1), Step(2, 12)]
    found = _on_every_rank(ranks.__getitem__, steps, [CAPTURED] * 2)
    assert [one.graph for one in found] == [BatchDescriptor(PIECEWISE, 16)] * 2
