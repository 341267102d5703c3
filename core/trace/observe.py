"""What an object is, as plain data: one function, used when a model is compiled and when an entry is loaded.

No guard text is parsed and no expected value is dug out of Dynamo: both sides observe a live object
in the same way, so a mistake here shows as a failed self-test at compile time.
"""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests, bytecode_digest
from graphkiln.core.trace.kernel_objects import is_kernel, kernel_name

_CONSTANT_BASES: tuple[Any, ...] = (int, float, str, bytes)
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def typed_constant(value: Any) -> list[Any]:
    """Returns a constant with its type: 3, 3.0 and True stay three. Raises Bypass for any other object."""
    if value is None:
        return ["none"]
    if value is Ellipsis:
        return ["ellipsis"]
    kind = type(value)
    if kind is bool:
        return ["b", value]
    if kind is int:
        return ["i", str(value)]
    if kind is float:
        return ["f", value.hex()]
    if kind is complex:
        return ["c", value.real.hex(), value.imag.hex()]
    if kind is str:
        return ["s", value]
    if kind is bytes:
        return ["y", value.hex()]
    if kind in (tuple, list, torch.Size):
        return [
            "t" if kind is tuple else "l" if kind is list else "z",
            [typed_constant(item) for item in value],
        ]
    if kind in (set, frozenset):
        return ["e", kind.__name__, sorted((typed_constant(item) for item in value), key=repr)]
    if kind is dict:
        return ["d", [[typed_constant(key), typed_constant(item)] for key, item in value.items()]]
    if kind is slice:
        return ["slice", [typed_constant(item) for item in (value.start, value.stop, value.step)]]
    if kind is range:
        return ["range", [value.start, value.stop, value.step]]
    if isinstance(value, _TORCH_CONSTANTS):
        return ["torch", str(value)]
    if isinstance(value, enum.Enum):
        return ["enum", type_name(type(value)), value.name]
    if isinstance(value, type):
        return ["type", type_name(value)]
    if isinstance(value, types.CodeType):
        return ["code", bytecode_digest(value)]
    for base in _CONSTANT_BASES:
        if isinstance(value, base):
            return ["sub", type_name(kind), typed_constant(base(value))]
    raise Bypass("code", f"the trace depends on a {type_name(kind)}, which has no stored form")


def untyped_constant(value: Any) -> Any:
    """Returns the constant that `typed_constant` wrote, for the kinds that occur as keys in paths."""
    kind = value[0]
    if kind in ("b", "s"):
        return value[1]
    if kind == "i":
        return int(value[1])
    if kind == "f":
        return float.fromhex(value[1])
    if kind == "none":
        return None
    if kind == "t":
        return tuple(untyped_constant(item) for item in value[1])
    if kind == "y":
        return bytes.fromhex(value[1])
    if kind == "slice":
        return slice(*(untyped_constant(item) for item in value[1]))
    if kind == "torch":
        name = str(value[1])
        return (
            getattr(torch, name.removeprefix("torch.")) if name.startswith("torch.") else torch.device(name)
        )
    raise Bypass("code", f"a key of kind {kind!r} in a stored path")


def type_name(kind: type) -> str:
    """Returns `module.qualified name` of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"


def identity(value: Any, digests: CodeDigests) -> list[Any]:
    """Returns what an object that a guard compares by identity is. Raises Bypass when it cannot be named."""
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, type):
        return ["type", type_name(value)]
    if isinstance(value, types.MethodType):
        return ["method", identity(value.__func__, digests)]
    if isinstance(value, types.FunctionType):
        return function_identity(value, digests)
    if isinstance(
        value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    ):
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        where = type_name(owner) if isinstance(owner, type) else getattr(value, "__module__", None)
        return ["builtin", where, value.__qualname__]
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return ["op", str(value)]
    if isinstance(value, torch._ops.HigherOrderOperator):
        return ["op", str(value.name())]
    if isinstance(value, (staticmethod, classmethod)):
        return [type(value).__name__, identity(value.__func__, digests)]
    if is_kernel(value):
        # By name: what it is made of is recorded where it is launched.
        return ["kernel", kernel_name(value)]
    if isinstance(value, torch.nn.Module):
        return ["instance", type_name(type(value))]
    if callable(value) and type(value).__module__.partition(".")[0] in ("torch", "functools", "_thread"):
        return ["instance", type_name(type(value)), getattr(value, "__qualname__", None)]
    return typed_constant(value)


def function_identity(function: types.FunctionType, digests: CodeDigests) -> list[Any]:
    """Returns a Python function by module, name and the digest of its code."""
    return ["function", function.__module__, function.__qualname__, digests.of(function.__code__)]


def observe(kind: str, value: Any, digests: CodeDigests, extra: Any = None) -> Any:
    """Returns what a guard of `kind` holds about `value`. `extra` is the guard's own argument, as data.

    Kinds are ours: several of Dynamo's guard types mean one of them (see `guards.KINDS`). Raises
    Bypass for an object that cannot be named.
    """
    if kind == "constant":
        return typed_constant(value)
    if kind == "type":
        # Under fake tensors a parameter is a FakeTensor that says what it stands for.
        return type_name(getattr(value, "pytype", None) or type(value))
    if kind == "identity":
        return identity(value, digests)
    if kind == "length":
        return [type_name(type(value)), len(value)]
    if kind == "keys":
        return [_key(key, digests) for key in value]
    if kind == "contains":
        return any(_key(item, digests) == extra for item in value)
    if kind == "hasattr":
        return hasattr(value, extra)
    if kind == "in instance dict":
        return extra in value.__dict__
    if kind == "count":
        return len(value)
    if kind == "tensor":
        return tensor_signature(value)
    raise Bypass("code", f"unknown record kind {kind!r}")


def _key(key: Any, digests: CodeDigests) -> Any:
    try:
        return typed_constant(key)
    except Bypass:
        return identity(key, digests)


def tensor_signature(value: torch.Tensor) -> list[Any]:
    """Returns `[class, dtype, shape, stride]` of a tensor; never its device or its values."""
    kind = "Parameter" if isinstance(value, torch.nn.Parameter) else "Tensor"
    return [
        kind,
        str(value.dtype),
        [int(size) for size in value.shape],
        [int(step) for step in value.stride()],
    ]
