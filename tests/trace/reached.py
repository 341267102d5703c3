"""A module that names things of every kind, as text, and what stands in there for Triton."""

# Triton's own classes as far as they are read, for where Triton is not installed.
STAND_IN = """
import inspect


class _Made:
    def __init__(self, fn, **named):
        self.fn = fn
        self.__dict__.update(named)


JITFunction = type("JITFunction", (_Made,), {"__module__": "triton.runtime.jit"})
Autotuner = type("Autotuner", (_Made,), {"__module__": "triton.runtime.autotuner"})
Heuristics = type("Heuristics", (_Made,), {"__module__": "triton.runtime.autotuner"})
constexpr = type("constexpr", (_Made,), {"__module__": "triton.language.core"})


class Config(_Made):
    def __init__(self, kwargs, num_warps=4, num_stages=3, pre_hook=None):
        rest = {"num_ctas": 1, "maxnreg": None, "ir_override": None, "pre_hook": pre_hook}
        super().__init__(None, kwargs=kwargs, num_warps=num_warps, num_stages=num_stages, **rest)


def jit(fn, **options):
    lines, _ = inspect.getsourcelines(fn)
    text = "".join(lines)
    return JITFunction(fn, raw_src=lines, src=text[text.index("def "):], **options)


def autotune(configs, **named):
    rest = {"keys": ["n"], "reset_to_zero": [], "restore_value": [], **named}
    return lambda fn: Autotuner(fn, configs=configs, **rest)
"""
MODULE = """
import enum
import functools
import math
import os
import torch
import weird
from stand_in import *

SIZE = constexpr(None, value=8)
LIMIT = 3


@jit
def inner(x):
    return x * 2


@jit
def kernel(x, n, BLOCK=1):
    # a remark
    return inner(x) + SIZE


@autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=8)])
@jit
def tuned(x, n):
    return x


def helper(x):
    return math.sqrt(x) + LIMIT


@functools.lru_cache
def cached(x):
    return x + 5


def times(x, factor):
    return x * factor


@functools.wraps(math.sqrt)
def rounded(x):
    return x + ROUND


ROUND = 11
scaled = functools.partial(times, factor=6)


def op(x, scale=2.0):
    return rounded(scaled(cached(helper(kernel(x))))) * scale


class Odd:
    pass


class Mode(enum.IntEnum):
    FAST = 1


RELU = torch.nn.ReLU()
PICK = {"a": 1}.get
METHOD = RELU.extra_repr
FAST = Mode.FAST
SPACE = torch.ops.reached


def uses_a_layer(x):
    return RELU(x)


def uses_a_method_of_a_dict():
    return PICK("a")


def uses_a_method():
    return METHOD()


def uses_an_enum():
    return FAST


def uses_a_namespace(x):
    return SPACE.op(x)


def hides_the_ops(x):
    hidden = torch
    return hidden.ops.reached.op(x)


def spells_the_ops(x):
    return getattr(torch, "ops").reached.op(x)


def calls_no_op(x):
    return torch.ops.reached.op(x)


def reads_a_module():
    return weird.anything


def reads_the_environment():
    return os.environ["A"]


def uses_a_class():
    return Odd()


def sets_a_global():
    global LIMIT
    LIMIT = 4


def evaluates():
    return eval("LIMIT")


def recursive(x):
    return recursive(x - 1) if x else kernel(x)
"""
