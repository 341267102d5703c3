"""The compiler factor: what turns a graph into code, known without a trace.

Read on every start, so nothing here imports Inductor: sources are read as files.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from graphkiln.core.compile.torch_options import torch_options
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.passes.sources import syntax_digest
from graphkiln.core.target.named import Target
from graphkiln.core.target.torch_build import build_for, torch_sources

# Where Triton puts files and finds its own, what it prints or leaves to its launcher, and what every compile
# of ours sets itself.
_TRITON_NEUTRAL = frozenset(
    {
        "TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR", "TRITON_CACHE_MANAGER",
        "TRITON_PRINT_AUTOTUNING", "TRITON_KERNEL_DUMP", "TRITON_ALWAYS_COMPILE", "TRITON_PTXAS_PATH",
        "TRITON_DISABLE_LINE_INFO", "TRITON_CUOBJDUMP_PATH", "TRITON_NVDISASM_PATH", "TRITON_LIBCUDA_PATH",
        "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_CUDACRT_PATH", "TRITON_CUDART_PATH", "TRITON_CACHE_AUTOTUNING",
        "TRITON_DUMP_PTXAS_LOG", "TRITON_ENABLE_NVTX", "TRITON_FRONT_END_DEBUGGING", "TRITON_PROTON_DISABLE",
        "TRITON_REMOTE_CACHE_BACKEND", "TRITON_STORE_BINARY_ONLY",
    }
)  # fmt: skip
# Variables of its own that Triton names otherwise, and that reach its code or what it is keyed by.
_TRITON_OTHERS = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5",
    "DISABLE_PTXAS_OPT", "LLVM_EXTRACT_DI_LOCAL_VARIABLES", "LLVM_PASS_PLUGIN_PATH", "PTXAS_OPTIONS",
    "USE_IR_LOC",
)  # fmt: skip
# Our own sources that decide the same; on a GPU also the attention kernels, and what chooses among them.
_PIPELINE = ("trace", "compile")
_ATTENTION = (
    "ops/paged", "ops/specialisations", "ops/triton_kernels", "attending", "models/declared",
)  # fmt: skip


def compiler_factor(target: Target, passes: Pipeline) -> dict[str, Any]:
    """Returns the compiler factor for a target.

    Raises Bypass for an option that has no plain form, CompileError for a pass without source.
    """
    described = getattr(target, "described", None)
    # Another build of the same torch, which is all that may differ from what a description says.
    build = {} if described is None else {"torch": build_for(described.versions.torch)}
    return {**compiler_values(target.kind, passes), **build, "target": target.as_factor()}


def compiler_values(kind: Literal["cpu", "cuda"], passes: Pipeline) -> dict[str, Any]:
    """Returns the compiler factor for any target of a kind, without the target itself."""
    return {
        "torch": str(torch.__version__),
        "torch_sources": torch_sources(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        **torch_options(kind),
        **({"triton": triton_factor()} if kind == "cuda" else {}),
        "pipeline": pipeline_digest(kind),
        "passes": passes.factor(),
    }


def triton_factor() -> dict[str, Any]:
    """Returns what of Triton decides machine code: version, sources, variables that are set.

    Its libraries and its assembler are told by the digests that its installer recorded.
    """
    try:
        found = metadata.distribution("triton")
    except metadata.PackageNotFoundError:
        return {"version": None}
    # Bytecode is written by whoever imports, and belongs to no version.
    rows = sorted(
        f"{file}={file.hash.value}"
        for file in found.files or ()
        if file.hash is not None and file.parts[0] == "triton" and file.suffix != ".pyc"
    )
    return {
        "version": found.version,
        "files": hashlib.sha256("\n".join(rows).encode()).hexdigest(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if (name.startswith("TRITON_") and name not in _TRITON_NEUTRAL) or name in _TRITON_OTHERS
        },
    }


def pipeline_digest(kind: Literal["cpu", "cuda"]) -> dict[str, str]:
    """Returns a digest of each of our own modules that decide what is compiled, comments apart."""
    # Found from this file: the namespace package has no usable path in an editable install.
    root = Path(__file__).parents[1]
    files = [file for part in _PIPELINE for file in sorted((root / part).glob("*.py"))]
    if kind == "cuda":
        files += [root / f"{name}.py" for name in _ATTENTION]
    return {f"{file.parent.name}.{file.stem}": syntax_digest(file.read_bytes()) for file in files}
