"""The compiler factor: what turns a graph into code, known without a trace.

Read on every start, so nothing here imports Inductor: sources are read as files.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch

from graphkiln.core.compile.torch_options import torch_options
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.passes.sources import syntax_digest
from graphkiln.core.target.cpu import CpuTarget
from graphkiln.core.trace.functions import TORCH_PARTS

# Our own sources that decide the same.
_PIPELINE = ("trace", "compile")


def compiler_factor(target: CpuTarget, passes: Pipeline) -> dict[str, Any]:
    """Returns the compiler factor for a target.

    Raises Bypass for an option that has no plain form, CompileError for a pass without source.
    """
    return {
        "torch": str(torch.__version__),
        "torch_sources": torch_sources(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        **torch_options(),
        "pipeline": pipeline_digest(),
        "passes": passes.factor(),
        "target": target.as_factor(),
    }


def torch_sources(root: Path = Path(torch.__file__).parent) -> str:
    """Returns one digest of the parts of torch that make code: their Python text, the commit of the rest."""
    total = hashlib.sha256(str(torch.version.git_version).encode())
    files = [file for part in TORCH_PARTS for file in (root / part).rglob("*.py")]
    for file in sorted([*files, *root.glob("*.py")]):
        total.update(file.relative_to(root).as_posix().encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def pipeline_digest() -> dict[str, str]:
    """Returns a digest of each of our own modules that decide what is compiled, comments apart."""
    # Found from this file: the namespace package has no usable path in an editable install.
    root = Path(__file__).parents[1]
    return {
        f"{part}.{file.stem}": syntax_digest(file.read_bytes())
        for part in _PIPELINE
        for file in sorted((root / part).glob("*.py"))
    }
