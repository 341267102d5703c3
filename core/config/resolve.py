"""From what was asked to what is in effect, with a decision for everything that became something else.

The order matters, because later steps look at what earlier ones settled: mode, passes that the target
can run, custom ops, the level, CUDA graphs, capture sizes, splitting, ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphkiln.core.config.breakable import uses_breakable_graphs
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.custom_ops import with_base, with_op
from graphkiln.core.config.effective import EffectiveConfig
from graphkiln.core.config.facts import Facts
from graphkiln.core.config.graph_mode import graphs_and_sizes
from graphkiln.core.config.levels import Situation, level_mode, level_passes
from graphkiln.core.config.modes import CompilationMode
from graphkiln.core.config.passes_config import PassConfig, allreduce_limit, possible_passes
from graphkiln.core.config.ranges import compile_ranges
from graphkiln.core.config.splitting import split
from graphkiln.core.config.trail import Trail
from graphkiln.core.report import Decision

_PIECE_BACKENDS = ("inductor", "eager")
# A kernel for one size is worth a search; on a CPU the search takes longer than it ever saves.
_SEARCH = {"max_autotune": True, "coordinate_descent_tuning": True}


@dataclass(frozen=True)
class Resolution:
    """What is in effect, and what was decided on the way to it."""

    effective: EffectiveConfig
    decisions: tuple[Decision, ...]


def resolve(config: CompilationConfig, facts: Facts) -> Resolution:
    """Returns the configuration in effect. Raises ValueError where what was asked contradicts itself."""
    trail = Trail()
    if facts.max_num_batched_tokens < facts.max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens: {facts.max_num_batched_tokens} is below max_num_seqs "
            f"{facts.max_num_seqs}, and a step has a token for each request"
        )
    breakable = uses_breakable_graphs(facts)
    mode = _mode(config, facts, breakable, trail)
    possible = possible_passes(config.pass_config, facts, trail)
    ops = _custom_ops(config, mode, facts, possible, trail)
    partition = bool(config.use_inductor_graph_partition)
    fuse_attn_quant = bool(possible.fuse_attn_quant)
    situation = Situation(facts, mode, config.backend, ops, config.splitting_ops, partition, fuse_attn_quant)
    passes = level_passes(config.optimization_level, possible, situation, trail)
    graphs, sizes = graphs_and_sizes(config, facts, mode, breakable, trail)
    splitting_ops, graphs = split(
        config.splitting_ops, mode, graphs, trail, partition=partition, fuse_attn_quant=fuse_attn_quant
    )
    limit = allreduce_limit(passes, facts)
    ranges = compile_ranges(
        config.compile_ranges_endpoints or (),
        config.compile_sizes or (),
        facts.max_num_batched_tokens,
        sizes,
        () if limit is None else (limit,),
        trail,
    )
    wrap = config.ir_enable_torch_wrap
    warmups = config.cudagraph_num_of_warmups
    effective = EffectiveConfig(
        mode=mode,
        backend=config.backend,
        custom_ops=ops,
        splitting_ops=splitting_ops,
        use_inductor_graph_partition=partition,
        ir_enable_torch_wrap=_wraps(mode, config.backend) if wrap is None else wrap,
        passes=passes,
        dynamic_shapes=config.dynamic_shapes_config,
        ranges=ranges,
        inductor_compile_config=config.inductor_compile_config,
        single_size_options=_SEARCH if facts.device == "cuda" else {},
        breakable=breakable,
        cudagraph_mode=graphs,
        capture_sizes=sizes,
        warmups=_warmups(config, facts) if warmups is None else warmups,
        copy_inputs=config.cudagraph_copy_inputs,
    )
    return Resolution(effective, trail.decisions)


def _mode(config: CompilationConfig, facts: Facts, breakable: bool, trail: Trail) -> CompilationMode:
    if config.enforce_eager:
        got, reason = CompilationMode.NONE, "enforce_eager"
    elif facts.compile_disabled:
        got, reason = CompilationMode.NONE, "TORCH_COMPILE_DISABLE=1 turns torch.compile off"
    elif breakable:
        got, reason = CompilationMode.NONE, "breakable CUDA graphs run the model's own code"
    else:
        got = level_mode(config.optimization_level) if config.mode is None else config.mode
        reason = f"optimization level {config.optimization_level}"
    trail.decide("mode", config.mode, got, reason)
    if got is CompilationMode.VLLM_COMPILE and config.backend not in _PIECE_BACKENDS:
        good = ", ".join(_PIECE_BACKENDS)
        raise ValueError(f"backend: {config.backend!r} is not one of {good}, which VLLM_COMPILE takes")
    return got


def _custom_ops(
    config: CompilationConfig, mode: CompilationMode, facts: Facts, passes: PassConfig, trail: Trail
) -> tuple[str, ...]:
    ops = config.custom_ops
    if passes.enable_qk_norm_rope_fusion:
        got = with_op(ops, "rotary_embedding")
        trail.decide("custom_ops", ops, got, "pass_config.enable_qk_norm_rope_fusion looks for that op")
        ops = got
    if facts.quantisation == "fp8_block":
        got = with_op(ops, "quant_fp8")
        trail.decide("custom_ops", ops, got, "the weights are FP8 in blocks")
        ops = got
    # Inductor makes its own kernels from plain PyTorch; without it ours are the fast ones.
    inductor = config.backend == "inductor" and mode is not CompilationMode.NONE
    return with_base(ops, "none" if inductor else "all")


def _wraps(mode: CompilationMode, backend: str) -> bool:
    return mode is CompilationMode.VLLM_COMPILE and backend == "inductor"


def _warmups(config: CompilationConfig, facts: Facts) -> int:
    return 1 if facts.static_graphs and not config.enforce_eager else 0
