"""The compiler factor: what turns a graph into code, known without a trace.

Read on every start, so nothing here imports Inductor: sources are read as files.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from graphkiln.core.compile.torch_options import torch_options
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.passes.sources import syntax_digest
from graphkiln.core.target.named import Target
from graphkiln.core.trace.functions import TORCH_PARTS

# Where Triton puts files, what it prints, and what every compile of ours sets itself.
_TRITON_NEUTRAL = frozenset(
    {
        "TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR", "TRITON_CACHE_MANAGER",
        "TRITON_PRINT_AUTOTUNING", "TRITON_KERNEL_DUMP", "TRITON_ALWAYS_COMPILE", "TRITON_PTXAS_PATH",
        "TRITON_DISABLE_LINE_INFO", "TRITON_CUOBJDUMP_PATH", "TRITON_NVDISASM_PATH", "TRITON_LIBCUDA_PATH",
    }
)  # fmt: skip
_MOST_THREADS = 4
# Variables of its own that Triton names otherwise, and that reach its code or what it is keyed by.
_TRITON_OTHERS = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5",
    "DISABLE_PTXAS_OPT", "LLVM_EXTRACT_DI_LOCAL_VARIABLES", "LLVM_PASS_PLUGIN_PATH", "PTXAS_OPTIONS",
    "USE_IR_LOC",
)  # fmt: skip
# Our own sources that decide the same; on a GPU also the attention kernels, and what chooses among them.
_PIPELINE = ("trace", "compile")
_ATTENTION = ("paged", "specialisations", "triton_kernels")


def compiler_factor(target: Target, passes: Pipeline) -> dict[str, Any]:
    """Returns the compiler factor for a target.

    Raises Bypass for an option that has no plain form, CompileError for a pass without source.
    """
    return {**compiler_values(target.kind, passes), "target": target.as_factor()}


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


def torch_sources(root: Path = Path(torch.__file__).parent) -> str:
    """Returns one digest of the parts of torch that make code: their Python text, the commit of the rest."""
    parts = [f"{part}/" for part in TORCH_PARTS if (root / part).is_dir()]
    files = [
        *_sources(str(root), "", below=False),
        *(file for part in parts for file in _sources(str(root), part)),
    ]
    files.sort(key=lambda file: file.split("/"))
    # Every start reads this thousand of files; reading and digesting let other threads run.
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "graphkiln-sources") as pool:
        shares = [*pool.map(lambda first: _digests(root, files[first::threads]), range(threads))]
    total = hashlib.sha256(str(torch.version.git_version).encode())
    for at, file in enumerate(files):
        total.update(file.encode())
        total.update(shares[at % threads][at // threads])
    return total.hexdigest()


def _sources(root: str, folder: str, *, below: bool = True) -> Iterator[str]:
    """Yields the Python files of a folder, `""` or one that ends in a slash, by their names from `root`."""
    with os.scandir(f"{root}/{folder}") as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if below:
                    yield from _sources(root, f"{folder}{entry.name}/")
            elif entry.name.endswith(".py"):
                yield folder + entry.name


def _digests(root: Path, files: list[str]) -> list[bytes]:
    found = []
    for file in files:
        with open(f"{root}/{file}", "rb", buffering=0) as opened:
            found.append(hashlib.sha256(opened.read()).digest())
    return found


def pipeline_digest(kind: Literal["cpu", "cuda"]) -> dict[str, str]:
    """Returns a digest of each of our own modules that decide what is compiled, comments apart."""
    # Found from this file: the namespace package has no usable path in an editable install.
    root = Path(__file__).parents[1]
    files = [file for part in _PIPELINE for file in sorted((root / part).glob("*.py"))]
    if kind == "cuda":
        files += [root / "ops" / f"{name}.py" for name in _ATTENTION]
    return {f"{file.parent.name}.{file.stem}": syntax_digest(file.read_bytes()) for file in files}
