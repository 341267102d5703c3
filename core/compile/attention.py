"""Attention kernels compiled for a target and sealed, beside the pieces between which they run.

    attention.json        what each kernel was compiled for, and how its code is launched
    kernels/<n>.cubin     the machine code of row <n>

Private calls, tried on Triton 3.6.0: `ASTSource`, `compile`. Neither asks a device, so that the code is
the same wherever it is made. Which arguments decide code is said here and left to no call: counts and
strides decide none, tensors lie at multiples of 16.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.cache.store.manifest import ATTENTION_TABLE
from graphkiln.core.compile.sealed_attention import FORMAT
from graphkiln.core.compile.triton_kernels import machine_code, require_triton, triton_environment
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.attention import ATTENTION, KV_CACHE_UPDATE
from graphkiln.core.ops.backends import attention_backends
from graphkiln.core.ops.paged import PagedTriton, unfit
from graphkiln.core.ops.specialisations import ALIGNMENT, Specialisation
from graphkiln.core.target.cuda import CudaTarget

# How Triton writes the dtypes of tensors.
_POINTERS = {
    "bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32", "int64": "*i64",
}  # fmt: skip
_CONSTANT, _COUNT, _SCALE = "constexpr", "i32", "fp32"
_SCALES = frozenset({"scale", "softcap"})


def is_ours(served: ServedModel) -> bool:
    """Whether the first backend that computes a model, on a device that is not asked, is the Triton one."""
    if not served.layers:
        return False
    for backend in attention_backends():
        if isinstance(backend, PagedTriton):
            return not any(unfit(layer, served.dtype) for layer in served.layers)
        if not any(backend.refusal(layer, served.dtype, served.device) for layer in served.layers):
            return False
    return False


def dtypes_of(graphs: Iterable[fx.GraphModule], served: ServedModel) -> dict[str, list[str]]:
    """Returns the dtypes of query, key, value and output by layer, as traced parts call its two ops.

    A layer that no part calls is taken to be of the model's dtype.
    """
    attended: dict[str, tuple[Any, Any]] = {}
    written: dict[str, tuple[Any, Any]] = {}
    for node in (node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"):
        name = _callable_name(node.target)
        given = [arg.meta["example_value"].dtype for arg in node.args if _is_tensor(arg)]
        if name.startswith(KV_CACHE_UPDATE):
            written[_layer(node)] = (given[0], given[1])
        elif name.startswith(ATTENTION):
            attended[_layer(node)] = (given[0], given[3])
    usual = (served.dtype, served.dtype)
    found = {}
    for layer in served.layers:
        (query, output), held = attended.get(layer.name, usual), written.get(layer.name, usual)
        found[layer.name] = [str(dtype).removeprefix("torch.") for dtype in (query, *held, output)]
    return found


def _callable_name(target: Any) -> str:
    if isinstance(target, OpOverloadPacket):
        return str(target._qualified_op_name)
    return str(target.name()) if isinstance(target, OpOverload) else ""


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, fx.Node) and isinstance(arg.meta.get("example_value"), torch.Tensor)


def _layer(node: fx.Node) -> str:
    return next(str(arg) for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, str))


def seal_attention(
    wanted: Sequence[Specialisation], target: CudaTarget, scratch: Path
) -> dict[str, bytes | Path]:
    """Returns the files of an artifact that holds all of `wanted`; compilers write into `scratch`."""
    require_triton()
    with triton_environment(scratch):
        built = [_compiled(one, target) for one in wanted]
    rows = [
        {
            **one.as_json(),
            **{name: value for name, value in row.items() if name != "path"},
            "cubin": _cubin(number),
        }
        for number, (one, row) in enumerate(zip(wanted, built, strict=True))
    ]
    files: dict[str, bytes | Path] = {ATTENTION_TABLE: canonical_json({"format": FORMAT, "kernels": rows})}
    return files | {_cubin(number): row["path"] for number, row in enumerate(built)}


def _cubin(number: int) -> str:
    return f"kernels/{number}.cubin"


def _compiled(wanted: Specialisation, target: CudaTarget) -> dict[str, Any]:
    triton: Any = importlib.import_module("triton")
    compiler: Any = importlib.import_module("triton.backends.compiler")
    kernel = getattr(importlib.import_module("graphkiln.core.ops.triton_kernels"), wanted.kernel)
    source = triton.compiler.ASTSource(kernel, *signature(kernel.arg_names, wanted))
    gpu = compiler.GPUTarget("cuda", target.capability, target.device.warp_size)
    options = {"num_warps": wanted.warps, "num_stages": wanted.stages}
    return machine_code(wanted.kernel, triton.compile(source, target=gpu, options=options))


def signature(
    names: Sequence[str], wanted: Specialisation
) -> tuple[dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], list[list[Any]]]]:
    """Returns the types, the constants and the attributes of a kernel's parameters, as Triton takes them."""
    constants = dict(wanted.constants)
    pointers = iter(wanted.pointers)
    types: dict[str, str] = {}
    for place, name in enumerate(names):
        if name in constants:
            types[name] = _CONSTANT
        elif place < len(wanted.pointers):
            types[name] = _POINTERS[next(pointers)]
        else:
            types[name] = _SCALE if name in _SCALES else _COUNT
    aligned: dict[tuple[int, ...], list[list[Any]]] = {
        (place,): [["tt.divisibility", ALIGNMENT]] for place in range(len(wanted.pointers))
    }
    values: dict[tuple[int, ...], Any] = {(names.index(name),): value for name, value in constants.items()}
    return types, values, aligned
