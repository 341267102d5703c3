"""The one room that drives Inductor, and the private torch calls that this takes.

Tried on torch 2.11.0, 2.13.0, 2.14.1 and 2.15.0. Used beyond the public API: `compile_fx` with an
inner compiler of ours, `ShapeEnv.create_symbol`, `TracingContext.fw_metadata`,
`CppPythonBindingsCodeCache.load_pybinding_async` with its `_load_library` and `cache`.

A piece is compiled from its signature alone: fresh fake inputs, one symbol `T` with the range that
the door will hold, caches off. So what comes out depends on the piece and the settings and on
nothing that ran before, and the piece could be compiled in any process.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import re
import shutil
import unittest.mock
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._inductor import codecache, compile_fx, cpp_builder
from torch._inductor import config as inductor_config

from graphkiln.cache.errors import DiskFull
from graphkiln.core.compile.fake import fake_inputs
from graphkiln.core.compile.inductor_environment import inductor_environment
from graphkiln.core.compile.pieces import Piece
from graphkiln.core.compile.settings import InductorSettings
from graphkiln.core.compile.triton_kernels import (
    BuiltTriton,
    recorded_triton,
    require_triton,
    triton_environment,
)
from graphkiln.core.errors import Bypass, CompileError, NoCompiler, causes
from graphkiln.core.passes.manager import PassManager, Watch
from graphkiln.core.passes.pipeline import PassRun
from graphkiln.core.target.cpu import CpuTarget
from graphkiln.core.target.described import seen_here, wanted_it
from graphkiln.core.target.named import Target
from graphkiln.core.target.required import require_assembler
from graphkiln.core.target.undecided import refuse_undecided

# With less than this a kernel of any size may not fit: a failed build is then the disk's fault.
_LEAST_FREE_BYTES = 1 << 20
# How an assembler says why it makes no code, somewhere in a report of hundreds of lines.
_FATAL = re.compile(r"ptxas[\w-]* fatal|ptxas .* error\b")


@dataclass
class BuiltKernel:
    """One compiled C++ kernel: its argument types, its source, and the library that was built."""

    argtypes: tuple[str, ...]
    source: str
    library: Path


@dataclass
class BuiltPiece:
    """What Inductor made of one piece, before it is sealed."""

    wrapper: str
    kernels: list[BuiltKernel]
    constants: dict[str, torch.Tensor]
    num_outputs: int
    facts: tuple[sympy.Expr, ...]
    tokens: sympy.Symbol | None
    passes: tuple[PassRun, ...] = ()
    triton: Mapping[str, BuiltTriton] = field(default_factory=dict)
    aligned: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()


def compile_piece(piece: Piece, settings: InductorSettings, watch: Watch | None = None) -> BuiltPiece:
    """Returns `piece` compiled by Inductor for token counts in [smallest, largest].

    Raises NoCompiler when a C++ compiler is needed and missing, DiskFull, CompileError when the piece does
    something that its plain calling convention cannot carry. `watch` sees the graph between passes.
    """
    described = seen_here()
    if described is not None:
        refuse_undecided(piece.graph, described)
    passes = _pass_manager(settings, watch)
    with inductor_environment(settings, passes):
        mode, inputs, tokens = fake_inputs(piece.inputs, settings)
        caught: list[Any] = []

        def inner(graph: fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
            compiled = compile_fx.compile_fx_inner(graph, example_inputs, **kwargs)
            caught.append((compiled, len(list(example_inputs))))
            return compiled

        with (
            _recorded_kernels() as kernels,
            _triton(settings) as triton,
            tracing(TracingContext(mode)) as context,
            torch.no_grad(),
        ):
            # AOTAutograd changes the module it is given; the piece must stay as it was for a retry.
            graph = copy.deepcopy(piece.graph)
            try:
                compile_fx.compile_fx(graph, inputs, inner_compile=inner)
            except Exception as error:
                raise _translated(error, settings.scratch) from error
            built = [kernel() for kernel in kernels]
            metadata = context.fw_metadata if context is not None else None
    if len(caught) != 1:
        raise CompileError("piece", f"Inductor compiled {len(caught)} graphs for it", "report this model")
    compiled, given = caught[0]
    if metadata is None:
        raise CompileError("piece", "AOTAutograd left no metadata", "report this model")
    _refuse_unplain(metadata, given, len(piece.inputs), compiled)
    env = mode.shape_env
    assert env is not None
    return BuiltPiece(
        wrapper=compiled.source_code,
        kernels=built,
        constants=dict(compiled.constants or {}),
        num_outputs=len(metadata.output_info),
        facts=tuple(guard.expr for guard in env.guards),
        tokens=tokens,
        passes=passes.runs,
        triton=triton,
        aligned=tuple(compiled.inputs_to_check or ()),
        mutated=tuple(compiled.mutated_input_idxs or ()),
    )


@contextlib.contextmanager
def _triton(settings: InductorSettings) -> Iterator[dict[str, BuiltTriton]]:
    if isinstance(settings.target, CpuTarget):
        yield {}
        return
    require_triton()
    with triton_environment(settings.scratch), recorded_triton() as kernels:
        yield kernels


def _pass_manager(settings: InductorSettings, watch: Watch | None) -> PassManager:
    # Of the process and not of the settings: a start with such a pass has no key, and still runs it.
    others = inductor_config.post_grad_custom_post_pass
    last = others if isinstance(others, (list, tuple)) else [others] if others is not None else []
    passes = PassManager(settings.passes, watch=watch, last=last)
    # After the passes were imported: what runs is then what the key was made of.
    passes.identity = settings.passes.identity(settings.smallest, settings.largest)
    return passes


def compiler_identity() -> str:
    """Returns the C++ compiler's name and version, never its place. Raises NoCompiler without one."""
    try:
        text = cpp_builder.get_compiler_version_info(cpp_builder.get_cpp_compiler())
    except Exception as error:
        raise _translated(error) from error
    found = re.search(r"(gcc|clang) version ([\w.+-]+)", str(text))
    return f"{found[1]} {found[2]}" if found else "unknown"


def require_means(target: Target) -> None:
    """Raises NoCompiler when what a target needs is missing; before minutes of tracing and not after.

    That is a C++ compiler that answers, or for a GPU Triton and a torch whose kernels are known.
    """
    if target.kind == "cpu":
        compiler_identity()
    else:
        require_triton()
        described = seen_here()
        if described is not None:
            require_assembler(described)


def _refuse_unplain(metadata: Any, given: int, wanted: int, compiled: Any) -> None:
    def refuse(what: str) -> CompileError:
        return CompileError("piece", what, "keep that part of the model out of the compiled class")

    if given != wanted:
        raise refuse(f"AOTAutograd changed its inputs ({wanted} became {given})")
    if (
        metadata.num_intermediate_bases
        or metadata.tokens
        or getattr(metadata, "is_rng_op_functionalized", False)
    ):
        raise refuse("it returns views of hidden values, or orders side effects")
    if any(info.mutates_metadata for info in metadata.input_info):
        raise refuse("it changes the shape or strides of an input in place")
    outside = [
        info
        for info in metadata.input_info
        if info.mutates_data and "OUT_SIDE" in info.mutation_type.name.upper()
    ]
    if outside or getattr(metadata, "mutated_inp_runtime_indices", []):
        raise refuse("it changes an input in a way that the compiled graph cannot do by itself")
    if compiled.torchbind_constants or getattr(compiled, "opaque_value_type_classes", None):
        raise refuse("it holds an object that is not a tensor")


def _translated(error: Exception, scratch: Path | None = None) -> Exception:
    for cause in causes(error):
        if scratch is not None and _is_full(cause, scratch):
            return DiskFull(scratch)
        name = type(cause).__name__
        if name == "InvalidCxxCompiler" or (
            isinstance(cause, FileNotFoundError) and os.environ.get("CXX", "g++") in str(cause)
        ):
            return _no_compiler()
        absent = wanted_it(cause)
        if absent is not None:
            return absent
        if isinstance(cause, (Bypass, CompileError)):
            return cause
    return CompileError("piece", f"Inductor: {_gist(error)}", "see -vv for the whole report")


def _gist(error: Exception) -> str:
    """Returns what an error says in one line: the assembler's own, or what a report begins and ends with."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    fatal = next((line for line in lines if _FATAL.match(line)), None)
    return fatal or " ".join([lines[0], *(lines[-1:] if lines[0].endswith(":") else [])])


def _is_full(error: BaseException, scratch: Path) -> bool:
    # A C++ compiler that ran out of space says so in its output, or only dies.
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if os.strerror(errno.ENOSPC) in str(error):
        return True
    return type(error).__name__ == "CppCompileError" and shutil.disk_usage(scratch).free < _LEAST_FREE_BYTES


def _no_compiler() -> NoCompiler:
    return NoCompiler(
        "C++ compiler",
        f"{os.environ.get('CXX', 'g++')} was not found, and kernels for this CPU must be built",
        "install g++ or point CXX at a compiler",
    )


@contextlib.contextmanager
def _recorded_kernels() -> Iterator[list[Callable[[], BuiltKernel]]]:
    """Collects every C++ kernel that is built inside, as functions that wait for the library."""
    found: list[Callable[[], BuiltKernel]] = []
    libraries: dict[int, Path] = {}
    cache = codecache.CppPythonBindingsCodeCache
    original, original_load = cache.load_pybinding_async, cache._load_library

    def load_library(path: str, key: str) -> Any:
        module = original_load(path, key)
        # Not the module's own file: of a kernel built before, Inductor gives the module of that time.
        libraries[id(module)] = Path(path)
        return module

    def load(argtypes: Any, main_code: str, *args: Any, **kwargs: Any) -> Any:
        waiting = original(argtypes, main_code, *args, **kwargs)

        def built() -> BuiltKernel:
            return BuiltKernel(tuple(argtypes), main_code, libraries[id(waiting().__self__)])

        found.append(built)
        return waiting

    with (
        unittest.mock.patch.object(cache, "load_pybinding_async", load),
        unittest.mock.patch.object(cache, "_load_library", load_library),
        # Of a kernel built before, the library lay in another scratch folder, which is gone.
        unittest.mock.patch.object(cache, "cache", {}),
    ):
        yield found
