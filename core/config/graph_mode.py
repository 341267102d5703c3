"""Which CUDA graphs a deployment can have, and for which sizes."""

from __future__ import annotations

from graphkiln.core.config.capture_sizes import capture_sizes
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.facts import Facts
from graphkiln.core.config.levels import level_graphs
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode
from graphkiln.core.config.trail import Trail

_NONE = CUDAGraphMode.NONE
# Its kernels wait on the host for how many tokens each expert gets, which a graph cannot.
_UNCAPTURABLE_ALL2ALL = "deepep_high_throughput"


def graphs_and_sizes(
    config: CompilationConfig, facts: Facts, mode: CompilationMode, breakable: bool, trail: Trail
) -> tuple[CUDAGraphMode, tuple[int, ...]]:
    """Returns the CUDA graph mode that is possible, and the sizes to capture. Raises ValueError for sizes."""
    graphs = _possible(config, facts, mode, breakable, trail)
    if graphs is _NONE:
        if config.cudagraph_capture_sizes:
            reason = "no CUDA graphs are captured"
            trail.decide("cudagraph_capture_sizes", config.cudagraph_capture_sizes, (), reason)
        return graphs, ()
    sizes = capture_sizes(
        config.cudagraph_capture_sizes,
        config.max_cudagraph_capture_size,
        config.performance_mode,
        facts,
        trail,
    )
    if facts.moe and facts.data_parallel_size > 1 and facts.all2all_backend == _UNCAPTURABLE_ALL2ALL:
        graphs = trail.decide_mode(graphs, _NONE, f"{_UNCAPTURABLE_ALL2ALL} cannot be captured")
    return graphs, sizes


def _possible(
    config: CompilationConfig, facts: Facts, mode: CompilationMode, breakable: bool, trail: Trail
) -> CUDAGraphMode:
    graphs = config.cudagraph_mode
    if config.enforce_eager:
        return trail.decide_mode(graphs, _NONE, "enforce_eager")
    if graphs is None:
        level = config.optimization_level
        graphs = trail.decide_mode(None, level_graphs(level), f"optimization level {level}")
    if not facts.static_graphs:
        return trail.decide_mode(graphs, _NONE, "a CPU has no CUDA graphs")
    graphs = _without_pieces(graphs, mode, breakable, trail)
    if facts.pooling and graphs.full:
        reason = "a pooling model has no uniform decode to capture whole"
        graphs = trail.decide_mode(graphs, CUDAGraphMode.PIECEWISE, reason)
    if facts.encoder_decoder and graphs is not _NONE:
        reason = "the encoder of an encoder-decoder model has no fixed shapes: decode alone is captured"
        graphs = trail.decide_mode(graphs, CUDAGraphMode.FULL_DECODE_ONLY, reason)
    graphs = _without_pieces(graphs, mode, breakable, trail)
    if mode is CompilationMode.STOCK_TORCH_COMPILE and not facts.captures_stock_compile:
        graphs = trail.decide_mode(graphs, _NONE, "the runner does not capture around plain torch.compile")
    return graphs


def _without_pieces(
    graphs: CUDAGraphMode, mode: CompilationMode, breakable: bool, trail: Trail
) -> CUDAGraphMode:
    """Returns the mode without its piecewise part where there are neither pieces nor breaks."""
    if breakable or mode is CompilationMode.VLLM_COMPILE:
        return graphs
    reason = f"mode {mode.name} makes no pieces to capture"
    return trail.decide_mode(graphs, graphs.without_piecewise(), reason)
