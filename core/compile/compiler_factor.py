"""The compiler factor: what turns a graph into code, known without a trace.

Read on every start, so nothing here imports Inductor's compilers: sources are read as files, options
from the config modules alone.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphkiln.core.errors import Bypass
from graphkiln.core.target.cpu import CpuTarget

# Parts of torch in Python that decide what comes out of a trace and of Inductor.
_TORCH_PARTS = (
    "_decomp", "_dynamo", "_export", "_functorch", "_higher_order_ops", "_inductor", "_library", "_prims",
    "_prims_common", "_refs", "_subclasses", "fx",
)  # fmt: skip

# Our own sources that decide the same.
_PIPELINE = ("trace", "compile")

# Inductor options that cannot change generated code, by the start of their names.
_NEUTRAL = (
    # What `inductor.py` sets itself for every compile.
    "cpp.cxx", "cpp.threads", "cpp.dynamic_threads", "cpp.march", "cpp.simdlen", "cpp.vec_isa_ok",
    "cpp.enable_unsafe_math_opt_flag", "cpp_cache_precompile_headers", "fx_graph_", "enable_autograd_cache",
    # Compiler processes and their time-outs.
    "compile_threads", "compile_worker_", "worker_", "subprocess", "quiesce_async_compile_",
    "file_lock_timeout", "precompilation_timeout_seconds", "autotune_in_subproc",
    # Caches, folders and paths.
    "autotune_local_cache", "autotune_remote_cache", "bundled_autotune_remote_cache", "global_cache_dir",
    "bundle_triton_into_fx_graph_cache", "force_disable_caches", "enable_remote_autograd_cache", "local_",
    "remote_", "non_blocking_remote_cache_write", "unsafe_", "cutlass.cutlass_dir", "pip_",
    # Logs, reports and debugging.
    "debug", "verbose_progress", "disable_progress", "trace.", "save_args", "log_", "developer_warnings",
    "torchinductor_worker_logpath", "autoheuristic_log_path", "profile_bandwidth", "annotate_",
    "joint_graph_debug", "force_same_precision_log", "test_configs.",
    # The config modules' own bookkeeping.
    "TYPE_CHECKING", "_cache_config_", "_save_config_", "is_nightly_or_source",
    # Launchers and packagers that are not used.
    "use_static_", "static_launch", "aot_inductor.", "rocm.", "cuda.", "xpu.", "_micro_pipeline",
)  # fmt: skip

# Options of back ends that make no code for a CPU.
_NOT_FOR_CPU = ("triton.", "cutlass.", "halide.", "nvgemm_", "cutedsl_")


def compiler_factor(target: CpuTarget) -> dict[str, Any]:
    """Returns the compiler factor for a target. Raises Bypass for an option that has no plain form."""
    return {
        "torch": str(torch.__version__),
        "torch_sources": torch_sources(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "inductor": config_options("torch._inductor.config"),
        "functorch": config_options("torch._functorch.config"),
        "pipeline": pipeline_digest(),
        "target": target.as_factor(),
    }


def torch_sources(root: Path = Path(torch.__file__).parent) -> str:
    """Returns one digest of the parts of torch that make code: their Python text, the commit of the rest."""
    total = hashlib.sha256(str(torch.version.git_version).encode())
    for part in _TORCH_PARTS:
        for file in sorted((root / part).rglob("*.py")):
            total.update(file.relative_to(root).as_posix().encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def pipeline_digest() -> dict[str, str]:
    """Returns a digest of each of our own modules that decide what is compiled, comments apart."""
    # Found from this file: the namespace package has no usable path in an editable install.
    root = Path(__file__).parents[1]
    return {
        f"{part}.{file.stem}": _syntax_digest(file.read_bytes())
        for part in _PIPELINE
        for file in sorted((root / part).glob("*.py"))
    }


def _syntax_digest(source: bytes) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                del body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def config_options(module_name: str) -> dict[str, Any]:
    """Returns the options of a torch config module that can change code, by their dotted names.

    All of them and not only the changed ones: torch takes many defaults from the environment when
    it is imported, so that a default says nothing.
    """
    module: Any = importlib.import_module(module_name)
    found: dict[str, Any] = {}
    for name, entry in sorted(module._config.items()):
        if (
            name.startswith((*_NEUTRAL, *_NOT_FOR_CPU))
            or getattr(entry, "alias", None)
            or getattr(entry, "deprecated", False)
        ):
            continue
        found[name] = plain_option(f"{module_name}.{name}", getattr(module, name))
    return found


def plain_option(name: str, value: Any) -> Any:
    """Returns an option's value as plain data. Raises Bypass for a callable or any other object.

    An object that says who it is through `uuid()` (a custom pass) stands for itself that way.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_option(name, item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(plain_option(name, item)) for item in value)
    if isinstance(value, Mapping):
        return {str(key): plain_option(name, item) for key, item in sorted(value.items(), key=str)}
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    raise Bypass("compiler", f"option {name} holds a {type(value).__qualname__}, which has no canonical form")
