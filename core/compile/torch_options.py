"""The options of Inductor and functorch that a start is under, read without importing either.

In a process that has not imported a config module, its values are what its source, which the key
holds, makes of the environment. So the factor holds the variables that are set, and beside them what
a program changed in the live module: nothing, where it was never imported. A variable set after the
import, which the module therefore never saw, shows as a change as well.

Tried on torch 2.13.0; the config modules keep their entries in `_config` since 2.6.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from graphkiln.core.errors import Bypass

# Options that cannot change generated code, by the start of their names.
_NEUTRAL = (
    # What `inductor.py` sets itself for every compile.
    "cpp.cxx", "cpp.threads", "cpp.dynamic_threads", "cpp.march", "cpp.simdlen", "cpp.vec_isa_ok",
    "cpp.enable_unsafe_math_opt_flag", "cpp_cache_precompile_headers", "fx_graph_", "enable_autograd_cache",
    # Compiler processes and their time-outs.
    "compile_threads", "compile_worker_", "worker_", "subprocess", "quiesce_async_compile_",
    "file_lock_timeout", "precompilation_timeout_seconds", "autotune_in_subproc", "decide_compile_threads",
    "decide_worker_start_method",
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
    # Launchers and packagers that are not used, back ends that make no code.
    "use_static_", "static_launch", "aot_inductor.", "rocm.", "xpu.", "halide.",
)  # fmt: skip
# Back ends that make no code for a CPU.
_NEUTRAL_ON_CPU = ("cuda.", "_micro_pipeline", "triton.", "cutlass.", "nvgemm_", "cutedsl_")
# What `inductor.py` sets itself for every compile for a GPU.
_SET_ON_CUDA = ("triton.autotune_at_compile_time", "triton.cudagraph", "triton.store_cubin")

_MODULES = {"inductor": "torch._inductor.config", "functorch": "torch._functorch.config"}
_NAME = re.compile(r"[\"']([A-Z][A-Z0-9_]{3,})[\"']")


def torch_options(device: Literal["cpu", "cuda"] = "cpu") -> dict[str, Any]:
    """Returns `{"inductor": {"environment", "changed"}, "functorch": ...}`: options that can change code.

    Those of `device`. Raises Bypass for a changed option that has no plain form.
    """
    neutral = _NEUTRAL + (_NEUTRAL_ON_CPU if device == "cpu" else _SET_ON_CUDA)
    return {
        title: {
            "environment": set_variables(_source(name), neutral),
            "changed": changed_options(name, neutral),
        }
        for title, name in _MODULES.items()
    }


def set_variables(source: Path, neutral: tuple[str, ...] = _NEUTRAL + _NEUTRAL_ON_CPU) -> dict[str, str]:
    """Returns the environment variables that are set and that a config module makes an option of."""
    text = source.read_text(encoding="utf-8")
    present = set(_NAME.findall(text)) & os.environ.keys()
    if not present:
        return {}
    found: set[str] = set()
    for option, names in _reads(ast.parse(text)):
        if not option.startswith(neutral):
            found |= names & present
    return {name: os.environ[name] for name in sorted(found)}


def _reads(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, set[str]]]:
    """Gives each option, or function, of a config module with the capital names that its text holds."""
    for statement in getattr(tree, "body", []):
        if isinstance(statement, ast.ClassDef):
            yield from _reads(statement, f"{prefix}{statement.name}.")
            continue
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            option = statement.targets[0].id
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            option = statement.target.id
        else:
            option = getattr(statement, "name", "")
        names = {
            node.value
            for node in ast.walk(statement)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        yield f"{prefix}{option}", names


def changed_options(
    module_name: str, neutral: tuple[str, ...] = _NEUTRAL + _NEUTRAL_ON_CPU
) -> dict[str, Any]:
    """Returns the options of a live config module that are not what the environment alone makes of them."""
    live: Any = sys.modules.get(module_name)
    if live is None:
        return {}
    fresh: Any = _fresh(module_name)
    found: dict[str, Any] = {}
    for name, entry in live._config.items():
        if name.startswith(neutral) or getattr(entry, "alias", None) or getattr(entry, "deprecated", False):
            continue
        value = getattr(live, name)
        if name not in fresh._config or value != getattr(fresh, name):
            found[name] = plain_option(f"{module_name}.{name}", value)
    return dict(sorted(found.items()))


def _fresh(module_name: str) -> Any:
    """Returns a second copy of a config module, made now, that nobody has touched."""
    name = "_graphkiln_fresh_" + module_name.replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, _source(module_name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The module installs its options on the module of its own name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _source(module_name: str) -> Path:
    return Path(torch.__file__).parent.joinpath(*module_name.split(".")[1:]).with_suffix(".py")


def plain_option(name: str, value: Any) -> Any:
    """Returns an option's value as plain data. Raises Bypass for a callable or any other object."""
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
