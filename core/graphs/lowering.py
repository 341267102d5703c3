"""What is left of a CUDA graph mode once the attention backends are known: the last decisions before capture.

They are known when the KV cache is laid out, after the configuration was resolved, so that these rules
are the second half of `core.config.graph_mode`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode
from graphkiln.core.config.splitting import cuts_attention
from graphkiln.core.config.trail import Trail
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError
from graphkiln.core.graphs.plan import GraphPlan, graphs_of
from graphkiln.core.ops.support import AttentionSupport
from graphkiln.core.report import Decision

_FIELD = "cudagraph_mode"


@dataclass(frozen=True)
class CacheLayout:
    """What is known with the KV cache and bears on the graphs.

    `backends` is the support level of each attention backend by its name; a model without attention has
    none. `decode_length` is the tokens of one request in a step of decode. `has_pieces` says whether a
    compiled part of the model is in use. `state_blocks` is how many requests a cache of recurrent states
    holds, None where the model has none.
    """

    backends: Mapping[str, AttentionSupport]
    decode_length: int
    max_num_seqs: int
    has_pieces: bool = True
    state_blocks: int | None = None

    @property
    def weakest(self) -> tuple[str, AttentionSupport]:
        """The backend that allows least, and its level."""
        none = ("no attention", AttentionSupport.ALWAYS)
        return min(self.backends.items(), key=lambda item: item[1], default=none)


def lowered(
    graphs: CUDAGraphMode, compilation: EffectiveConfig, layout: CacheLayout, trail: Trail
) -> CUDAGraphMode:
    """Returns the mode that attention leaves possible, each step down recorded in `trail`.

    Raises CompileError where FULL was asked for and a backend cannot be captured at all, and where the
    graphs would serve more requests than there are recurrent states.
    """
    name, support = layout.weakest
    pieces = _between_pieces(compilation)
    says = f"attention backend {name} is captured for {_MEANINGS[support]}"
    if graphs.mixed is CUDAGraphMode.FULL and support < AttentionSupport.ALWAYS:
        if support is AttentionSupport.NEVER:
            raise CompileError(
                f"{_FIELD}={graphs.name}", says, f"use {_FIELD}=PIECEWISE, or another attention backend"
            )
        got = CUDAGraphMode.FULL_AND_PIECEWISE if pieces else CUDAGraphMode.FULL_DECODE_ONLY
        graphs = trail.decide_mode(graphs, got, says)
    rest = CUDAGraphMode.PIECEWISE if pieces else CUDAGraphMode.NONE
    if graphs.decode is CUDAGraphMode.FULL and support is AttentionSupport.NEVER:
        graphs = trail.decide_mode(graphs, rest, says)
    if (
        graphs.decode is CUDAGraphMode.FULL
        and layout.decode_length > 1
        and support < AttentionSupport.UNIFORM_BATCH
    ):
        reason = f"{says}, and a step of decode has {layout.decode_length} for each"
        graphs = trail.decide_mode(graphs, rest, reason)
    if graphs.piecewise and not layout.has_pieces and not compilation.breakable:
        reason = "the model has no compiled part and no breaks of its own: there are no pieces"
        graphs = trail.decide_mode(graphs, graphs.without_piecewise(), reason)
    _require_states(graphs, layout)
    return graphs


_MEANINGS = {
    AttentionSupport.NEVER: "no batch",
    AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE: "one token for each request only",
    AttentionSupport.UNIFORM_BATCH: "requests of one length only",
    AttentionSupport.ALWAYS: "every batch",
}


def lowered_plan(
    compilation: EffectiveConfig, deployment: Deployment, layout: CacheLayout
) -> tuple[EffectiveConfig, GraphPlan, tuple[Decision, ...]]:
    """Returns the configuration that attention leaves possible, its graphs, and the decisions on the way.

    Raises CompileError as `lowered` does.
    """
    trail = Trail()
    mode = lowered(compilation.cudagraph_mode, compilation, layout, trail)
    plan = graphs_of(replace(compilation, cudagraph_mode=mode), deployment)
    if mode.decode is CUDAGraphMode.FULL and plan.descriptors and not plan.of(CUDAGraphMode.FULL):
        # Every size was rounded up to whole requests, and then was larger than the largest.
        reason = f"no capture size holds a step of decode, {layout.decode_length} tokens for each request"
        mode = trail.decide_mode(mode, mode.mixed, reason)
    elif mode is not CUDAGraphMode.NONE and not plan.descriptors:
        mode = trail.decide_mode(mode, CUDAGraphMode.NONE, "no capture size is left")
    compilation = replace(compilation, cudagraph_mode=mode)
    return compilation, graphs_of(compilation, deployment), trail.decisions


def _between_pieces(compilation: EffectiveConfig) -> bool:
    """Whether attention runs between graphs: the compiler cuts there, or the model's own code breaks."""
    if compilation.breakable:
        return True
    cut = compilation.use_inductor_graph_partition or cuts_attention(compilation.splitting_ops)
    return compilation.mode is CompilationMode.VLLM_COMPILE and cut


def _require_states(graphs: CUDAGraphMode, layout: CacheLayout) -> None:
    if graphs.full and layout.state_blocks is not None and layout.max_num_seqs > layout.state_blocks:
        raise CompileError(
            f"{_FIELD}={graphs.name}",
            f"{layout.max_num_seqs} requests need a recurrent state each, and the cache has "
            f"{layout.state_blocks}",
            f"lower max_num_seqs to {layout.state_blocks}",
        )
