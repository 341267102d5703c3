"""What code that no trace goes through can depend on: Triton kernels, and the bodies of ops made of them.

Such code is run or compiled as it is, so that nothing tells which of its globals mattered: all that it
names are recorded by value, and what cannot be named is refused. Private: what `triton.jit` and
`triton.autotune` keep of their arguments; tried on Triton 3.6.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from graphkiln.cache.factors.difference import differences
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests, module_of
from graphkiln.core.trace.kernel_objects import function_of, is_kernel, kernel_name
from graphkiln.core.trace.observe import identity, type_name, typed_constant

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
        given = [self._value(function.__qualname__, value) for value in defaults]
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
        for name in _globals_of(function.__code__):
            if name in function.__globals__:
                outside[name] = function.__globals__[name]
            elif name in _BLIND or not hasattr(builtins, name):
                raise _refused(function.__qualname__, f"it uses {name}")
        return {name: self._value(name, value) for name, value in sorted(outside.items())}

    def _value(self, name: str, value: Any) -> list[Any]:
        if is_kernel(value):
            return self.kernel(value)
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in _KNOWN:
                raise _refused(name, f"it reads from the module {value.__name__}, nobody knows what")
            return ["module", value.__name__]
        home = str(getattr(value, "__module__", None) or type(value).__module__).partition(".")[0]
        if isinstance(value, types.FunctionType) and home not in _KNOWN:
            return self.function(value)
        if isinstance(value, type) and home not in _KNOWN:
            raise _refused(name, f"it uses the class {type_name(value)}")
        if type(value).__name__ == "constexpr" and home == "triton":
            return ["constexpr", typed_constant(value.value)]
        if home == "triton":
            return ["triton", type_name(type(value)), str(getattr(value, "__name__", value))]
        return identity(value, self._digests)


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Yields the global names that code reads, also inside of it. Raises Bypass where it sets one."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
        elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"):
            raise _refused(code.co_qualname, f"it changes or imports {instruction.argval}")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals_of(inner)


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
