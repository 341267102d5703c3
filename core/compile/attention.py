"""Attention kernels compiled for a target and sealed, beside the pieces between which they run.

    attention.json        what each kernel was compiled for, and how its code is launched
    kernels/<n>.cubin     the machine code of row <n>

Private calls, tried on Triton 3.6.0: `ASTSource`, `compile`. Neither asks a device, so that the code is
the same wherever it is made. Which arguments decide code is said here and left to no call: counts and
strides decide none, tensors lie at multiples of 16.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.cache.store.manifest import ATTENTION_TABLE
from graphkiln.core.compile.sealed_attention import FORMAT
from graphkiln.core.compile.triton_kernels import machine_code, require_triton, triton_environment
from graphkiln.core.errors import CompileError
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.attention import ATTENTION, KV_CACHE_UPDATE
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.specialisations import ALIGNMENT, Specialisation
from graphkiln.core.target.cuda import CudaTarget

# How Triton writes the dtypes of tensors.
_POINTERS = {
    "bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32", "int64": "*i64",
}  # fmt: skip
_CONSTANT, _COUNT, _SCALE = "constexpr", "i32", "fp32"
_SCALES = frozenset({"scale", "softcap"})


@dataclass(frozen=True)
class Calls:
    """What traced parts give the two ops: example tensors by the names of arguments, by layer."""

    attended: Mapping[str, Mapping[str, torch.Tensor]]
    written: Mapping[str, Mapping[str, torch.Tensor]]


def calls_in(graphs: Iterable[fx.GraphModule]) -> Calls:
    """Returns the calls of the two attention ops in traced parts.

    Raises CompileError for a layer that is called with other sizes or dtypes than before: it has one kernel.
    """
    found: dict[str, dict[str, dict[str, torch.Tensor]]] = {ATTENTION: {}, KV_CACHE_UPDATE: {}}
    for node in (node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"):
        target = node.target.default if isinstance(node.target, OpOverloadPacket) else node.target
        if isinstance(target, OpOverload) and target._schema.name in found:
            names = (argument.name for argument in target._schema.arguments)
            given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
            layer = str(given["layer_name"])
            call = {name: arg.meta["example_value"] for name, arg in given.items() if _is_tensor(arg)}
            if _facts(found[target._schema.name].setdefault(layer, call)) != _facts(call):
                reason = "it is called with tensors of other sizes or dtypes than before"
                raise CompileError(f"attention layer {layer}", reason, "give each kind of call a layer")
    return Calls(found[ATTENTION], found[KV_CACHE_UPDATE])


def _facts(call: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {
        name: (tensor.dtype, *map(str, tensor.shape[1:]))
        for name, tensor in call.items()
        if name in ("query", "key", "value", "output")
    }


def require_as_declared(calls: Calls, layers: Iterable[AttentionLayer]) -> None:
    """Raises CompileError for a call of a layer that is none of `layers`, or has other heads or sizes."""
    known = {layer.name: layer for layer in layers}
    for name, given in (*calls.attended.items(), *calls.written.items()):
        layer, what = known.get(name), f"attention layer {name}"
        if layer is None:
            reason = f"the model calls it, and its attention_layers are {', '.join(known)}"
            raise CompileError(what, reason, "declare every layer that is called")
        declared = {
            "query": (layer.heads, layer.head_size),
            "key": (layer.kv_heads, layer.head_size),
            "value": (layer.kv_heads, layer.value_size),
            "output": (layer.heads, layer.value_size),
        }
        for argument, wanted in declared.items():
            if argument in given and tuple(given[argument].shape[1:]) != wanted:
                said, seen = (", ".join(map(str, ("T", *one))) for one in (wanted, given[argument].shape[1:]))
                reason = f"it is declared with {argument} [{said}] and called with [{seen}]"
                raise CompileError(what, reason, "declare its heads and sizes as they are")


def dtypes_of(calls: Calls, served: ServedModel) -> dict[str, list[str]]:
    """Returns the dtypes of query, key, value and output by layer, as the two ops are called.

    A layer that no part calls is taken to be of the model's dtype.
    """
    found = {}
    for layer in served.layers:
        attended, written = calls.attended.get(layer.name, {}), calls.written.get(layer.name, {})
        given = attended.get("query"), written.get("key"), written.get("value"), attended.get("output")
        dtypes = (served.dtype if tensor is None else tensor.dtype for tensor in given)
        found[layer.name] = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return found


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, fx.Node) and isinstance(arg.meta.get("example_value"), torch.Tensor)


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
