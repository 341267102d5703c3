"""Which captured graph serves a step: the first that fits, FULL before PIECEWISE, else none."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step

_ORDER = (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE)


@dataclass(frozen=True)
class _Sizes:
    """The captured sizes of one mode and LoRA case, ascending, and the descriptors of each."""

    sizes: tuple[int, ...]
    groups: tuple[tuple[BatchDescriptor, ...], ...]

    def at(self, tokens: int) -> tuple[BatchDescriptor, ...]:
        """Returns the descriptors of the smallest size that holds `tokens`: no larger one is tried."""
        index = bisect.bisect_left(self.sizes, tokens)
        return self.groups[index] if index < len(self.sizes) else ()


class Dispatcher:
    """Answers for each step which of the `captured` graphs serves it.

    It knows what was captured, not what was planned: without graphs every step gets mode NONE, and
    after a capture that ended early the sizes that are there cover what lies below them.
    """

    def __init__(self, captured: Iterable[BatchDescriptor], lora_cases: Sequence[int] = (0,)) -> None:
        self._lora_cases = tuple(sorted(lora_cases))
        found: dict[tuple[CUDAGraphMode, int], dict[int, list[BatchDescriptor]]] = {}
        for descriptor in captured:
            by_size = found.setdefault((descriptor.mode, descriptor.num_active_loras), {})
            by_size.setdefault(descriptor.num_tokens, []).append(descriptor)
        self._sizes = {
            place: _Sizes(tuple(sorted(by_size)), tuple(tuple(by_size[size]) for size in sorted(by_size)))
            for place, by_size in found.items()
        }

    def dispatch(self, step: Step, at_most: CUDAGraphMode = CUDAGraphMode.FULL) -> BatchDescriptor:
        """Returns the graph for a step, or mode NONE with the step's own, unpadded counts.

        `at_most` PIECEWISE tries no FULL graph, NONE no graph at all.
        """
        lora_case = self.lora_case(step.num_active_loras)
        if step.num_tokens > 0 and at_most in _ORDER:
            for mode in _ORDER[_ORDER.index(at_most) :]:
                sizes = self._sizes.get((mode, lora_case))
                for descriptor in sizes.at(step.num_tokens) if sizes else ():
                    if fits(descriptor, step, lora_case):
                        return descriptor
        return BatchDescriptor(
            CUDAGraphMode.NONE,
            step.num_tokens,
            step.num_reqs,
            num_active_loras=lora_case,
            num_ubatches=step.num_ubatches,
        )

    def lora_case(self, active: int) -> int:
        """Returns the smallest case with room for so many adapters; what is above the largest gets that.

        Without LoRA a count is no case and stays as it is: no graph serves a step with adapters then.
        """
        if self._lora_cases == (0,):
            return active
        index = bisect.bisect_left(self._lora_cases, active)
        return self._lora_cases[min(index, len(self._lora_cases) - 1)]


def fits(descriptor: BatchDescriptor, step: Step, lora_case: int) -> bool:
    """Whether a graph can serve a step.

    A graph that bounds the length of its requests serves no step whose bound is not known, and one
    that was captured for a number of microbatches only steps that are split into so many.
    """
    bound = descriptor.max_query_len
    return (
        descriptor.uniform_token_count in (None, step.uniform_token_count)
        and (bound is None or (step.max_query_len is not None and step.max_query_len <= bound))
        and (descriptor.num_reqs is None or descriptor.num_reqs >= step.num_reqs)
        and descriptor.num_tokens >= step.num_tokens
        and descriptor.num_active_loras == lora_case
        and descriptor.num_ubatches == step.num_ubatches
    )
