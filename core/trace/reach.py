"""What code that no trace goes through can depend on: Triton kernels, and the bodies of ops made of them.

Such code is run or compiled as it is, so that nothing tells which of its globals mattered: all that it
names are recorded by value, and what cannot be named is refused. Private: what `triton.jit` and
`triton.autotune` keep of their arguments; tried on Triton 3.6.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from graphkiln.cache.factors.difference import differences
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests, module_of
from graphkiln.core.trace.kernel_objects import function_of, is_kernel, kernel_name
from graphkiln.core.trace.observe import identity, type_name, typed_constant
from graphkiln.core.trace.registered import TORCH_NAMESPACES, body_of, fake_of

# Modules whose functions give the same for the same arguments, and which the compiler factor holds.
_KNOWN = frozenset({"torch", "triton", "math", "operator", "functools", "itertools", "typing", "builtins"})
# Built-in functions through which code reads what it does not name.
_BLIND = frozenset({"eval", "exec", "globals", "vars", "open", "input", "__import__"})
_OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")


def function_reach(function: types.FunctionType, digests: CodeDigests) -> list[Any]:
    """Returns a function by its code and by everything that it names, functions that it calls included.

    Raises Bypass for what it names and nobody can compare.
    """
    return _Reach(digests).function(function)


def value_reach(name: str, value: Any, digests: CodeDigests) -> list[Any]:
    """Returns what is called `name` by what it is, with everything that its code names.

    Raises Bypass for what nobody can compare, an instance of a class for one.
    """
    return _Reach(digests).value(name, value)


def kernel_reach(kernel: Any, digests: CodeDigests) -> list[Any]:
    """Returns a Triton kernel by its code, its options, its configurations, and everything that it names.

    Raises Bypass for what cannot be compared: hooks, heuristics, configurations that code chooses.
    """
    return _Reach(digests).kernel(kernel)


def first_change(then: Any, now: Any) -> tuple[Any, Any]:
    """Returns the first value in which two records of the same code differ, as it was and as it is."""
    found = differences("code", then, now)
    return (found[0].then, found[0].now) if found else (then, now)


class _Reach:
    def __init__(self, digests: CodeDigests) -> None:
        self._digests = digests
        self._seen: dict[int, str] = {}

    def function(self, function: types.FunctionType) -> list[Any]:
        known = self._known(function, f"{function.__module__}:{function.__qualname__}")
        if known is not None:
            return known
        code = function.__code__
        module = module_of(code)
        if module is not None:
            self._digests.require_same(module, code)
        defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
        given = [self.value(function.__qualname__, value) for value in defaults]
        return [*identity(function, self._digests), given, self._named(function)]

    def kernel(self, kernel: Any) -> list[Any]:
        name = kernel_name(kernel)
        known = self._known(kernel, name)
        if known is not None:
            return known
        kind = type(kernel).__name__
        if kind == "Heuristics":
            raise _refused(name, "its constants are computed by triton.heuristics")
        if kind == "Autotuner":
            return ["autotuned", *_tuning(name, kernel), self.kernel(kernel.fn)]
        _require_as_written(name, kernel)
        options = [typed_constant(getattr(kernel, option, None)) for option in _OPTIONS]
        return ["kernel", name, options, self.function(function_of(kernel))]

    def _known(self, value: Any, name: str) -> list[Any] | None:
        if id(value) in self._seen:
            return ["seen", name]
        self._seen[id(value)] = name
        return None

    def _named(self, function: types.FunctionType) -> dict[str, Any]:
        """Returns what a function reads from outside by name, each by what it is."""
        outside = dict(inspect.getclosurevars(function).nonlocals)
        ops = {}
        for name, *attributes in _dotted(function.__code__):
            if "ops" in attributes:
                ops.update(self._torch_ops(function, name, attributes))
            if name in function.__globals__:
                outside[name] = function.__globals__[name]
            elif name and (name in _BLIND or not hasattr(builtins, name)):
                raise _refused(function.__qualname__, f"it uses {name}")
        return {name: self.value(name, value) for name, value in sorted({**outside, **ops}.items())}

    def _torch_ops(self, function: types.FunctionType, name: str, attributes: list[str]) -> dict[str, Any]:
        """Returns the op that code calls as `torch.ops.namespace.name`, by that; nothing for torch's own."""
        path = ".".join([name or "a value", *attributes[:3]])
        if function.__globals__.get(name) is not torch or attributes[0] != "ops" or len(attributes) < 2:
            raise _refused(function.__qualname__, f"it reads {path}, nobody knows what")
        if attributes[1] in TORCH_NAMESPACES:
            return {}
        op = getattr(getattr(torch.ops, attributes[1]), "".join(attributes[2:3]), None)
        if not isinstance(op, OpOverloadPacket):
            raise _refused(function.__qualname__, f"it reads {path}, which is no op")
        return {path: op}

    def value(self, name: str, value: Any) -> list[Any]:
        """Returns what is called `name` by what it is."""
        if is_kernel(value):
            return self.kernel(value)
        if isinstance(value, types.ModuleType):
            return _module(name, value)
        if isinstance(value, (CustomOpDef, OpOverload, OpOverloadPacket)):
            return ["op", *(self._op(op) for op in _overloads(value))]
        if isinstance(value, functools._lru_cache_wrapper):
            return ["cached", self.value(name, value.__wrapped__)]
        if type(value) is functools.partial:
            given = [self.value(name, value.args), self.value(name, value.keywords)]
            return ["partial", self.value(name, value.func), *given]
        if isinstance(value, types.FunctionType):
            # By its file: `functools.wraps` gives a function the name of another one's module.
            if (module_of(value.__code__) or "").partition(".")[0] not in _KNOWN:
                return self.function(value)
            return identity(value, self._digests)
        if type(value) in (tuple, list):
            return [type(value).__name__, *(self.value(name, item) for item in value)]
        if type(value) in (set, frozenset):
            items = sorted((self.value(name, item) for item in value), key=repr)
            return [type(value).__name__, *items]
        if type(value) is dict:
            pairs = ([self.value(name, key), self.value(name, item)] for key, item in value.items())
            return ["dict", *pairs]
        return self._plain(name, value)

    def _plain(self, name: str, value: Any) -> list[Any]:
        """Returns a constant, or what torch, Triton or Python made; raises Bypass for any other instance."""
        home = str(getattr(value, "__module__", None) or type(value).__module__).partition(".")[0]
        if isinstance(value, type) and home not in _KNOWN:
            raise _refused(name, f"it uses the class {type_name(value)}")
        if type(value).__name__ == "constexpr" and home == "triton":
            return ["constexpr", self.value(name, value.value)]
        if home == "triton":
            return ["triton", type_name(type(value)), str(getattr(value, "__name__", value))]
        if isinstance(value, type) or _is_free(value):
            return identity(value, self._digests)
        if type(value).__module__.partition(".")[0] in _KNOWN:
            if isinstance(value, HigherOrderOperator):
                return identity(value, self._digests)
            with contextlib.suppress(Bypass):
                return typed_constant(value)
        raise _refused(name, f"it uses an instance of {type_name(type(value))}")

    def _op(self, op: OpOverload) -> list[Any]:
        """Returns an op by what the compiler sees of it: its body, or its fake implementation."""
        if op.namespace in TORCH_NAMESPACES:
            return [op.name()]
        known = self._known(op, op.name())
        if known is not None:
            return known
        body, fake = body_of(op), fake_of(op)
        if fake is None:
            raise _refused(op.name(), "it has no fake implementation in Python")
        seen = self.value(op.name(), fake) if body is None else self.function(body)
        return [op.name(), str(op._schema), sorted(map(str, op.tags)), seen]


def _module(name: str, module: types.ModuleType) -> list[Any]:
    root, _, rest = module.__name__.partition(".")
    part, _, namespace = rest.partition(".")
    of_ops = root == "torch" and part == "ops" and namespace not in TORCH_NAMESPACES
    if root not in _KNOWN or of_ops:
        raise _refused(name, f"it reads from the module {module.__name__}, nobody knows what")
    return ["module", module.__name__]


def _overloads(op: CustomOpDef | OpOverload | OpOverloadPacket) -> list[OpOverload]:
    if isinstance(op, OpOverloadPacket):
        return [getattr(op, name) for name in sorted(op.overloads())]
    return [op._opoverload if isinstance(op, CustomOpDef) else op]


def _is_free(value: Any) -> bool:
    """Says whether a value is a built-in function that belongs to no instance, as `{}.get` does."""
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return True
    owner = getattr(value, "__self__", None)
    plain = owner is None or isinstance(owner, (type, types.ModuleType))
    return isinstance(value, types.BuiltinFunctionType) and plain


def _dotted(code: types.CodeType) -> Iterator[list[str]]:
    """Yields what code reads, also inside of it: a global ("" for another value) and attributes in a row.

    Raises Bypass where it sets a global, imports, or has the name of `torch.ops` as a text.
    """
    row = [""]
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"):
            raise _refused(code.co_qualname, f"it changes or imports {instruction.argval}")
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            row.append(str(instruction.argval))
        elif instruction.opname != "EXTENDED_ARG":
            yield row
            row = [str(instruction.argval) if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ""]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _dotted(inner)
        elif isinstance(inner, str) and "ops" in inner.split("."):
            raise _refused(code.co_qualname, f"it has the text {inner!r}, the name of torch.ops")


def _tuning(name: str, tuner: Any) -> list[Any]:
    """Returns the configurations that a tuner chooses from, and by what."""
    configs = []
    for config in tuner.configs:
        if config.pre_hook is not None or getattr(config, "ir_override", None) is not None:
            raise _refused(name, "a configuration of it has a hook, or code of its own")
        numbers = (config.num_warps, config.num_stages, config.num_ctas, config.maxnreg)
        configs.append([typed_constant(dict(sorted(config.kwargs.items()))), *numbers])
    hooks = ("user_defined_pre_hook", "user_defined_post_hook", "perf_model", "early_config_prune")
    if any(getattr(tuner, hook, None) for hook in hooks):
        raise _refused(name, "functions of its own choose among its configurations")
    rest = (tuner.keys, tuner.reset_to_zero, tuner.restore_value)
    return [configs, *(typed_constant(list(value)) for value in rest)]


def _require_as_written(name: str, kernel: Any) -> None:
    """Raises Bypass for a kernel whose text was replaced: it is compiled from that, not from its function."""
    written = getattr(kernel, "raw_src", None)
    if written is not None and not textwrap.dedent("".join(written)).endswith(kernel.src):
        raise _refused(name, "its text was replaced after it was made")


def _refused(name: str, why: str) -> Bypass:
    return Bypass("code", f"{name} cannot be compared with what it was: {why}")
