"""The options of Inductor that are in force while a piece is compiled.

Private torch calls: `cpu_vec_isa.valid_vec_isa_list`, `cpp_builder._get_optimization_cflags`; tried on
torch 2.11.0, 2.13.0, 2.14.1 and 2.15.0. `utils.set_customized_partition_wrappers`: on 2.11.0 and 2.13.0.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator

from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor import cpp_builder, cpu_vec_isa
from torch._inductor import utils as inductor_utils

from graphkiln.core.compile.folding import exact_folding
from graphkiln.core.compile.instruction_set import flags_for, vector_sets
from graphkiln.core.compile.settings import InductorSettings
from graphkiln.core.errors import CompileError
from graphkiln.core.passes.manager import PassManager
from graphkiln.core.scratch import CACHE_FOLDER, variables
from graphkiln.core.target.cpu import CpuTarget, cpu_target

# No kernel is run, or loaded, to compile another; each is launched by torch's own launcher.
_FOR_CUDA = {
    "triton.autotune_at_compile_time": False,
    "triton.cudagraphs": False,
    "use_static_triton_launcher": False,
    "use_static_cuda_launcher": False,
    "static_launch_user_defined_triton_kernels": True,
    # By default matrix products of odd sizes are padded where that was the faster of two that were run.
    "shape_padding": False,
}
# Options that decide by timing kernels while compiling.
_TIMED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
_TIMED_BY_DEFAULT = ("shape_padding",)


@contextlib.contextmanager
def inductor_environment(settings: InductorSettings, passes: PassManager) -> Iterator[None]:
    """Caches off, files in the scratch folder, kernels for the target and not for this machine."""
    patches = {
        **settings.options,
        "post_grad_custom_post_pass": passes,
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "autotune_remote_cache": False,
        "cpp.dynamic_threads": True,
        "cpp.enable_unsafe_math_opt_flag": settings.fast_math,
        "cpp_cache_precompile_headers": False,
        # Inductor takes a bare name for every overload of an op, where one is meant.
        "custom_should_partition_ops": [_overload(op) for op in settings.partition_ops],
    }
    if settings.partition_ops:
        patches["graph_partition"] = True
    # Beside a GPU's kernels there may be some for the CPU: any CPU, since no target says which.
    on_cpu = settings.target if isinstance(settings.target, CpuTarget) else cpu_target("cpu:scalar")
    if on_cpu is not settings.target:
        _refuse_timed(settings)
        patches |= _FOR_CUDA
    isas = vector_sets(on_cpu.isa)
    # By width, so that ATEN_CPU_CAPABILITY, which says what eager runs, does not choose for us.
    patches["cpp.simdlen"] = isas[0].bit_width() if isas else 1
    with (
        variables({CACHE_FOLDER: str(settings.scratch)}),
        inductor_config.patch({name: value for name, value in patches.items() if _knows(name)}),
        functorch_config.patch({"enable_autograd_cache": False}),
        unittest.mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", return_value=isas),
        unittest.mock.patch.object(cpp_builder, "_get_optimization_cflags", flags_for(on_cpu.march)),
        _partitions(settings),
        exact_folding() if on_cpu is not settings.target else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def _partitions(settings: InductorSettings) -> Iterator[None]:
    """Has Inductor make partitions, which it does for who would capture them; that happens after a load."""
    if not settings.partition_ops:
        yield
        return
    before = inductor_utils._unstable_customized_partition_wrapper.wrapper
    inductor_utils.set_customized_partition_wrappers(lambda partition, metadata: partition)
    try:
        yield
    finally:
        inductor_utils._unstable_customized_partition_wrapper.wrapper = before


def _overload(op: str) -> str:
    return op if "." in op else f"{op}.default"


def _refuse_timed(settings: InductorSettings) -> None:
    here = {name: getattr(inductor_config, name) for name in _TIMED}
    for name in (*_TIMED, *_TIMED_BY_DEFAULT):
        if settings.options.get(name, here.get(name)):
            raise CompileError(
                f"inductor_compile_config.{name}",
                "it chooses by timing kernels while compiling, which pieces for a GPU are compiled without",
                "leave it out",
            )


def _knows(name: str) -> bool:
    return name in inductor_config._config  # type: ignore[attr-defined]
