"""Triton kernels as Inductor has them compiled: every configuration's machine code, and how it is launched.

Private calls, tried on torch 2.11.0 to 2.15.0 with the Triton of each: `AsyncCompile.triton`,
`CachingAutotuner` with its `_precompile_config` and `_make_launchers`, `StaticallyLaunchedCudaKernel`,
`StaticTritonCompileResult._get_arg_lists`, `GridExpr.from_meta`.

No kernel is loaded while it is compiled: the register count that Inductor's heuristics ask for is read
from the machine code. So a machine with the device and one without it decide alike.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from graphkiln.core.errors import CompileError, NoCompiler
from graphkiln.core.scratch import variables
from graphkiln.core.target.cubin import registers
from graphkiln.core.target.described import seen_here
from graphkiln.core.target.torch_build import ASSEMBLERS, own_ptxas
from graphkiln.core.target.tried import DESCRIBED, TRIED, torch_minor

_BUILT = "_graphkiln_built"
# What a source says of the place where it was made, and no code depends on.
_PLACE = re.compile(r"'backend_hash': '[0-9A-Fa-f]+', ")


@dataclass(frozen=True)
class Variant:
    """One configuration of a kernel: its machine code, and the call that launches it.

    `arguments` of the kernel's `parameters` go to the device, `types` has a letter for each; `grid` is
    three expressions over the parameters, after the statements of `prefix`. `nulls` are scratch
    pointers that the code takes and never uses.
    """

    config: dict[str, Any]
    cubin: Path
    warps: int
    shared: int
    registers: int
    arguments: tuple[str, ...]
    types: str
    nulls: int
    prefix: tuple[str, ...]
    grid: tuple[str, str, str]


@dataclass(frozen=True)
class BuiltTriton:
    """One compiled kernel. `mutated` and `zeroed` are the parameters that a trial run would spoil."""

    name: str
    source: str
    parameters: tuple[str, ...]
    mutated: tuple[str, ...]
    zeroed: tuple[str, ...]
    variants: tuple[Variant, ...]


def require_triton() -> None:
    """Raises CompileError for a torch whose Triton kernels nobody has sealed.

    NoCompiler without Triton, and with one that interprets kernels.
    """
    version = torch_minor()
    known = TRIED if seen_here() is None else DESCRIBED
    if version not in known:
        raise CompileError(
            "target cuda",
            f"kernels for GPUs were sealed with torch {', '.join(known)} only, and this is torch {version}",
            f"install torch {[*known][-1]}",
        )
    try:
        triton: Any = importlib.import_module("triton")
    except ImportError as error:
        raise NoCompiler(
            "Triton", "it is not installed, and kernels must be built", "install triton"
        ) from error
    if triton.knobs.runtime.interpret:
        raise NoCompiler("Triton", "TRITON_INTERPRET is set, and it compiles nothing then", "unset it")


def triton_identity() -> str:
    """Returns Triton's name and version; its assembler is part of it."""
    return f"triton {metadata.version('triton')}"


@contextlib.contextmanager
def recorded_triton() -> Iterator[dict[str, BuiltTriton]]:
    """Collects every Triton kernel that Inductor has compiled inside, by its source."""
    async_compile: Any = importlib.import_module("torch._inductor.async_compile")
    found: dict[str, BuiltTriton] = {}

    def compiled(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        kernel = async_compile._load_triton_kernel_from_source(name, source)
        # Of a source that another piece had too, Inductor gives the kernel that was compiled then.
        if not hasattr(kernel, _BUILT):
            setattr(kernel, _BUILT, _compiled(name, source, kernel))
        found[source] = getattr(kernel, _BUILT)
        return kernel

    with unittest.mock.patch.object(async_compile.AsyncCompile, "triton", compiled):
        yield found


def _compiled(name: str, source: str, kernel: Any) -> BuiltTriton:
    results: list[Any] = []
    original = kernel._precompile_config

    def precompile_config(config: Any) -> Any:
        result = original(config)
        binary = result.kernel
        binary.n_regs = registers(binary.asm["cubin"])
        results.append(result)
        return result

    kernel._precompile_config = precompile_config
    kernel._make_launchers = lambda: None
    kernel.precompile()
    variants = [_variant(name, result) for result in results]
    parameters = variants[0][0]
    return BuiltTriton(
        name=name,
        source=_PLACE.sub("", source),
        parameters=parameters,
        mutated=tuple(sorted(kernel.mutated_arg_names)),
        zeroed=tuple(sorted(kernel.reset_to_zero_arg_names)),
        variants=tuple(variant for _, variant in variants),
    )


def _variant(name: str, result: Any) -> tuple[tuple[str, ...], Variant]:
    from torch._inductor.runtime import triton_heuristics

    config = result.config
    static = _static(name, result.kernel)
    plain = triton_heuristics.StaticTritonCompileResult(
        static, config, result.compile_meta, result.inductor_meta
    )
    _, parameters, absent = plain._get_arg_lists(static.arg_names, static.declared_constexprs)
    grid = triton_heuristics.GridExpr.from_meta(result.inductor_meta, config)
    found = machine_code(name, result.kernel)
    return tuple(parameters), Variant(
        config={**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages},
        cubin=found["path"],
        warps=found["warps"],
        shared=found["shared"],
        registers=found["registers"],
        arguments=tuple(argument for argument in found["arguments"] if argument not in absent),
        types=found["types"],
        nulls=found["nulls"],
        prefix=tuple(grid.prefix),
        grid=(str(grid.x_grid), str(grid.y_grid), str(grid.z_grid)),
    )


def machine_code(name: str, binary: Any) -> dict[str, Any]:
    """Returns what a launch of Triton's compiled kernel takes, and under `path` where its code lies.

    Raises CompileError for one that torch's own launcher cannot launch.
    """
    static = _static(name, binary)
    return {
        "path": _file(binary),
        "warps": static.num_warps,
        "shared": static.shared,
        "registers": registers(binary.asm["cubin"]),
        "arguments": [
            argument for index, argument in enumerate(static.arg_names) if index not in static.full_constexprs
        ],
        "types": static.arg_tys,
        "nulls": int(static.has_global_scratch) + int(static.has_profile_scratch),
    }


def _static(name: str, binary: Any) -> Any:
    from torch._inductor.runtime import static_triton_launcher

    for attribute in ("launch_pdl", "launch_cooperative_grid"):
        if getattr(binary.metadata, attribute, False):
            raise _refused(name, f"it is launched with {attribute}")
    binary._cubin_path = ""
    try:
        return static_triton_launcher.StaticallyLaunchedCudaKernel(binary)
    except NotImplementedError as error:
        raise _refused(name, str(error)) from error


def _file(binary: Any) -> Path:
    return next(Path(path) for name, path in binary.metadata_group.items() if name.endswith(".cubin"))


def _refused(name: str, why: str) -> CompileError:
    return CompileError(f"kernel {name}", f"it cannot be sealed: {why}", "report this model")


@contextlib.contextmanager
def triton_environment(scratch: Path) -> Iterator[None]:
    """Triton writes into the scratch folder, assembles with its own ptxas, and names no place in the code.

    The line tables of machine code hold paths: without them two builds of one source are the same bytes.
    """
    wanted = {
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TRITON_DISABLE_LINE_INFO": "1",
        **{variable: str(own_ptxas(name)) for name, variable in ASSEMBLERS.items()},
        # What would hand out code that was compiled elsewhere, or replaced, and is in no key.
        **dict.fromkeys(("TRITON_CACHE_MANAGER", "TRITON_REMOTE_CACHE_BACKEND", "TRITON_KERNEL_OVERRIDE")),
    }
    with variables(wanted):
        yield
