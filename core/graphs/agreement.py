"""How data-parallel ranks agree on the graph of a step: their collectives must meet, so all do the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Protocol

import torch

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step
from graphkiln.core.graphs.dispatch import Dispatcher

# By what a mode can serve: the least of all ranks is what all of them can do.
_MODES = (CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)
_NO_BOUND = -1


class Ranks(Protocol):
    """The data-parallel ranks as a rank sees them: its own number, how many there are, and a sum."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_sum(self, values: Sequence[int]) -> list[int]:
        """Returns the sums, element by element, of what every rank brought."""
        ...


@dataclass(frozen=True)
class Agreed:
    """What a rank does in a step: its own `graph`, or None where no rank has work.

    `tokens` are those of each rank, padded or as they came, `requests` those that each rank came with;
    `step` is what this rank had asked with.
    """

    step: Step
    graph: BatchDescriptor | None
    tokens: tuple[int, ...]
    requests: tuple[int, ...]

    def again(self, step: Step) -> Agreed:
        """Returns the same agreement for a second model that runs the same batch, a drafter for example.

        Raises ValueError for another batch: its ranks may have agreed otherwise.
        """
        if step != self.step:
            raise ValueError(f"ranks agreed on {self.step}, and {step} is another batch")
        return self


@dataclass(frozen=True)
class _Column:
    """What one rank says of its step: all numbers, so that one sum carries them."""

    tokens: int
    mode: int
    uniform: int
    longest: int
    ubatches: int
    requests: int


class Agreement:
    """Answers for each step which graph this rank runs, the same kind and size on all ranks."""

    def __init__(self, dispatcher: Dispatcher, ranks: Ranks) -> None:
        self._dispatcher = dispatcher
        self._ranks = ranks

    def agree(self, step: Step, *, coordinate: bool = True) -> Agreed:
        """Returns what this rank does. Every rank calls it once a step, also one that has no request.

        All run in the least of their modes; without a graph on one of them all run eagerly and unpadded.
        Otherwise each dispatches again for the most tokens of any rank, with its own requests and
        adapters. A rank without tokens has nothing against any graph: it runs what the others agree on.
        `coordinate` False takes this rank's step for everyone's, where the caller knows that it is.
        """
        own = self._column(step)
        columns = self._exchange(own) if coordinate else [own] * self._ranks.size
        requests = tuple(column.requests for column in columns)
        busy = [column for column in columns if column.tokens]
        if not busy:
            return Agreed(step, None, (0,) * len(columns), requests)
        mode = _MODES[min(column.mode for column in busy)]
        together = replace(
            step,
            num_tokens=max(column.tokens for column in busy),
            uniform_token_count=_same([column.uniform for column in busy]),
            max_query_len=_bound([column.longest for column in busy]),
            num_ubatches=min(column.ubatches for column in busy),
        )
        graph = self._dispatcher.dispatch(together, at_most=mode)
        if graph.mode is not CUDAGraphMode.NONE:
            return Agreed(step, graph, (graph.num_tokens,) * len(columns), requests)
        eager = replace(graph, num_tokens=step.num_tokens)
        return Agreed(step, eager, tuple(column.tokens for column in columns), requests)

    def _column(self, step: Step) -> _Column:
        return _Column(
            tokens=step.num_tokens,
            mode=_MODES.index(self._dispatcher.dispatch(step).mode),
            uniform=step.uniform_token_count or 0,
            longest=_NO_BOUND if step.max_query_len is None else step.max_query_len,
            ubatches=step.num_ubatches,
            requests=step.num_reqs,
        )

    def _exchange(self, own: _Column) -> list[_Column]:
        """Returns the columns of all ranks: each adds its own to zeros, so that one sum is all it takes."""
        width = len(fields(_Column))
        table = [0] * (width * self._ranks.size)
        start = width * self._ranks.rank
        table[start : start + width] = astuple(own)
        found = self._ranks.all_reduce_sum(table)
        return [_Column(*found[at : at + width]) for at in range(0, len(found), width)]


class GroupRanks:
    """The ranks of a torch process group; the sum runs on `device`, which its backend must take."""

    def __init__(self, group: torch.distributed.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._device = device

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self._group.rank()

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._group.size()

    def all_reduce_sum(self, values: Sequence[int]) -> list[int]:
        """Returns the sums of all ranks' values; waits for them."""
        tensor = torch.tensor(list(values), dtype=torch.int64, device=self._device)
        self._group.allreduce([tensor]).wait()
        return [int(value) for value in tensor.tolist()]


def _same(lengths: Sequence[int]) -> int | None:
    """Returns the one length that all ranks have, None where they have several or one has none."""
    return lengths[0] if lengths[0] and len(set(lengths)) == 1 else None


def _bound(lengths: Sequence[int]) -> int | None:
    return None if _NO_BOUND in lengths else max(lengths)
