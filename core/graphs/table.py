"""Which graph serves which step, as rows for a person: the dispatch rule, spelled out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step
from graphkiln.core.graphs.dispatch import Dispatcher
from graphkiln.core.graphs.plan import GraphPlan

Kind = Literal["decode", "mixed"]


@dataclass(frozen=True)
class DispatchRow:
    """Steps of one kind from `first` to `last` tokens, and what they are padded to.

    A step of decode has requests of `length` tokens each; `mode` NONE runs without a graph and unpadded.
    """

    kind: Kind
    length: int | None
    first: int
    last: int
    mode: str
    num_tokens: int | None
    num_reqs: int | None


def dispatch_table(plan: GraphPlan, max_num_batched_tokens: int) -> tuple[DispatchRow, ...]:
    """Returns a row for each graph that a step can get, and one for the steps that get none.

    Steps without adapters and microbatches; those with them have graphs of the same sizes.
    """
    dispatcher = Dispatcher(plan.descriptors, plan.lora_cases)
    tokens = {graph.num_tokens for graph in plan.descriptors}
    requests = {graph.num_reqs for graph in plan.descriptors if graph.num_reqs is not None}
    rows: list[DispatchRow] = []
    for length in sorted(set(plan.request.decode_lengths)):
        most = min(plan.request.max_num_seqs, max_num_batched_tokens // length)
        counts = _turns({*(size // length for size in tokens), *requests}, most)
        steps = (Step(count, count * length, length, length) for count in counts)
        rows += _rows("decode", length, steps, dispatcher)
    counts = _turns(tokens | requests, max_num_batched_tokens)
    mixed = (Step(min(count, plan.request.max_num_seqs), count) for count in counts)
    return (*rows, *_rows("mixed", None, mixed, dispatcher))


def _turns(limits: Iterable[int], most: int) -> list[int]:
    """Returns the counts from 1 to `most` at which another graph can begin or end to serve, ascending.

    A step fits a graph by comparing its counts with the graph's: between two of those all steps are alike.
    """
    turns = {1, most, *(limit + more for limit in limits for more in (0, 1))}
    return sorted(count for count in turns if 1 <= count <= most)


def _rows(
    kind: Kind, length: int | None, steps: Iterable[Step], dispatcher: Dispatcher
) -> Iterator[DispatchRow]:
    found = ((step, dispatcher.dispatch(step)) for step in steps)
    for graph, group in groupby(found, key=lambda item: _graph(item[1])):
        tokens = [step.num_tokens for step, _ in group]
        sizes = (None, None) if graph is None else (graph.num_tokens, graph.num_reqs)
        mode = CUDAGraphMode.NONE if graph is None else graph.mode
        yield DispatchRow(kind, length, tokens[0], tokens[-1], mode.name, *sizes)


def _graph(descriptor: BatchDescriptor) -> BatchDescriptor | None:
    return None if descriptor.mode is CUDAGraphMode.NONE else descriptor
