"""Which graphs are captured: the CUDA graph mode and the capture sizes, spelled out graph by graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.deployment import Deployment
from graphkiln.core.graphs.descriptor import BatchDescriptor

# The activations of a PIECEWISE graph are larger: what comes after finds room in the pool.
_CAPTURE_ORDER = (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)

# Why a kind of model has no graph, wherever it lies.
FACTORY_STEPS = "the model of a factory takes inputs of its own: no step of it is known"


@dataclass(frozen=True)
class Microbatches:
    """Steps of decode that are split into `count` parts, from `decode_tokens` tokens on."""

    count: int
    decode_tokens: int


@dataclass(frozen=True)
class GraphRequest:
    """What a plan is made of.

    `sizes` are the capture sizes. `decode_lengths` are the tokens of one request in a step of decode:
    one number, or each width of a schedule of drafts. `lora_cases` are counts of active adapters.
    `varlen_decode` captures decode with requests of up to the largest length instead of just that
    length. `mixed_limit` is the most tokens of a graph for mixed batches, None for no limit of its own.
    """

    mode: CUDAGraphMode
    sizes: tuple[int, ...]
    max_num_seqs: int
    decode_lengths: tuple[int, ...] = (1,)
    lora_cases: tuple[int, ...] = (0,)
    varlen_decode: bool = False
    microbatches: Microbatches | None = None
    mixed_limit: int | None = None

    @property
    def widest_decode(self) -> int:
        """The most tokens of a step of decode."""
        return self.max_num_seqs * max(self.decode_lengths)


@dataclass(frozen=True)
class GraphPlan:
    """The graphs of a request in the order of their capture: PIECEWISE first, then by size, largest first."""

    request: GraphRequest
    descriptors: tuple[BatchDescriptor, ...]

    @property
    def mode(self) -> CUDAGraphMode:
        """The CUDA graph mode that the graphs are of."""
        return self.request.mode

    @property
    def lora_cases(self) -> tuple[int, ...]:
        """The counts of active adapters that there are graphs for."""
        return self.request.lora_cases

    @property
    def modes(self) -> tuple[CUDAGraphMode, ...]:
        """PIECEWISE and FULL, as far as there are graphs of them, in the order of capture."""
        return tuple(mode for mode in _CAPTURE_ORDER if self.of(mode))

    def of(self, mode: CUDAGraphMode) -> tuple[BatchDescriptor, ...]:
        """Returns the graphs of one mode, PIECEWISE or FULL, the largest first."""
        return tuple(descriptor for descriptor in self.descriptors if descriptor.mode is mode)

    def with_sizes(self, sizes: Iterable[int]) -> GraphPlan:
        """Returns the plan of the same request for other capture sizes."""
        return plan_graphs(replace(self.request, sizes=tuple(sorted(sizes))))


def graphs_of(compilation: EffectiveConfig, deployment: Deployment) -> GraphPlan:
    """Returns the plan of a deployment under the configuration in effect."""
    return plan_graphs(
        GraphRequest(
            mode=compilation.cudagraph_mode,
            sizes=compilation.capture_sizes,
            max_num_seqs=deployment.max_num_seqs,
            decode_lengths=(1 + deployment.num_speculative_tokens,),
        )
    )


def plan_graphs(request: GraphRequest) -> GraphPlan:
    """Returns every graph that is to be captured."""
    found: dict[BatchDescriptor, None] = {}
    for size in sorted(set(request.sizes)):
        for lora_case in request.lora_cases:
            found |= dict.fromkeys([*_decode(request, size, lora_case), *_mixed(request, size, lora_case)])
    ordered = sorted(found, key=lambda graph: (_CAPTURE_ORDER.index(graph.mode), -graph.num_tokens))
    return GraphPlan(request, tuple(ordered))


def _decode(request: GraphRequest, size: int, lora_case: int) -> Iterator[BatchDescriptor]:
    """Gives the graphs for pure decode that a mode with a way of its own for decode has at a size."""
    mode = request.mode.decode
    if not request.mode.separate:
        return
    if request.varlen_decode:
        if size <= request.widest_decode:
            requests, longest = min(size, request.max_num_seqs), max(request.decode_lengths)
            yield BatchDescriptor(mode, size, requests, max_query_len=longest, num_active_loras=lora_case)
        return
    for length in sorted(set(request.decode_lengths)):
        requests = -(-size // length)
        tokens = requests * length
        if requests > request.max_num_seqs or tokens > max(request.sizes):
            continue
        yield from _with_twin(
            request, BatchDescriptor(mode, tokens, requests, length, num_active_loras=lora_case)
        )


def _mixed(request: GraphRequest, size: int, lora_case: int) -> Iterator[BatchDescriptor]:
    """Gives the graph for batches of any kind at a size: none where they run without."""
    mode = request.mode.mixed
    if mode is CUDAGraphMode.NONE or (request.mixed_limit is not None and size > request.mixed_limit):
        return
    requests = min(size, request.max_num_seqs) if mode is CUDAGraphMode.FULL else None
    yield from _with_twin(request, BatchDescriptor(mode, size, requests, num_active_loras=lora_case))


def _with_twin(request: GraphRequest, graph: BatchDescriptor) -> Iterator[BatchDescriptor]:
    """Gives a graph, and its twin for microbatches: full steps whose requests are of one length only."""
    yield graph
    split = request.microbatches
    if split is None or graph.num_reqs is None or graph.num_tokens < max(split.decode_tokens, split.count):
        return
    length, rest = divmod(graph.num_tokens, graph.num_reqs)
    if not rest:
        yield replace(graph, uniform_token_count=length, num_ubatches=split.count)


def lora_cases(max_loras: int | None, *, by_count: bool = False) -> tuple[int, ...]:
    """Returns the counts of active adapters that graphs are captured for; `max_loras` None means no LoRA.

    Without any adapter, with room for all; `by_count` also for each power of two that can be active.
    """
    if max_loras is None:
        return (0,)
    powers = [1 << exponent for exponent in range(max_loras.bit_length())] if by_count else []
    return (0, *powers, max_loras + 1)
