"""A part traced once, with everything that its key needs: graph, code factor, the range that it serves."""

from __future__ import annotations

from dataclasses import dataclass

from graphkiln.core.collector import collector_relaxed
from graphkiln.core.config.modes import DynamicShapesType
from graphkiln.core.errors import CompileError
from graphkiln.core.models.declared import layer_facts
from graphkiln.core.part import Part
from graphkiln.core.plan import Plan
from graphkiln.core.report import Decision
from graphkiln.core.trace.capture import Capture, capture
from graphkiln.core.trace.operators import first_difference, first_stray, operator_log
from graphkiln.core.trace.recording import TracedCode, record_code
from graphkiln.core.trace.shapes import facts_of, require


@dataclass(frozen=True)
class TracedPart:
    """What a trace left; `smallest` is the least token count that the compiled part may serve."""

    capture: Capture
    code: TracedCode
    smallest: int
    decisions: tuple[Decision, ...]


@collector_relaxed()
def trace_part(part: Part, plan: Plan, *, keyed: bool = True) -> TracedPart:
    """Returns the one trace of a part; without `keyed` its code factor is empty.

    A part that leaves no record of what it depends on can be compiled and served, but never found
    again: a second trace without a key does that. Raises ShapeLimited when the traced code does not
    hold for every token count up to the plan's largest, CompileError and Bypass as `capture` and
    `record_code` do.
    """
    count = plan.example_tokens
    arguments = tuple(part.arguments(count))
    kind = plan.compilation.dynamic_shapes.type
    unbacked = part.dynamic if kind is DynamicShapesType.UNBACKED else part.unbacked
    oblivious = kind is DynamicShapesType.BACKED_SIZE_OBLIVIOUS
    traced = capture(part.module, arguments, part.dynamic, unbacked, oblivious)
    require(facts_of(traced.shape_env), traced.tokens, 2, plan.ranges(2, part.encoder)[-1].end)
    smallest, decisions = _smallest(part, count)
    dropped = [size for size in plan.compilation.ranges.sizes if size < smallest]
    if dropped:
        kept = [size for size in plan.compilation.ranges.sizes if size >= smallest]
        reason = f"{part.prefix} serves {smallest} tokens and more"
        decisions += (Decision("compile_sizes", [*plan.compilation.ranges.sizes], kept, reason),)
    code = record_code(part.module, traced, smallest) if keyed else TracedCode({}, {})
    if keyed and part.layers:
        code.factor["attention"] = layer_facts(part.layers)
    return TracedPart(traced, code, smallest, decisions)


def _smallest(part: Part, count: int) -> tuple[int, tuple[Decision, ...]]:
    name = type(part.module).__qualname__
    try:
        many, two = (operator_log(part.module, part.arguments(tokens)) for tokens in (count, 2))
    except Exception as error:
        raise CompileError(
            name,
            f"its operators cannot be compared for different token counts ({_first_line(error)})",
            "keep sizes that depend on data out of the compiled class",
        ) from error
    found = first_difference(two, many)
    if found is not None:
        raise CompileError(
            name,
            f"it runs other operators for 2 tokens than for {count} ({found})",
            "make the code independent of the token count",
        )
    try:
        one = operator_log(part.module, part.arguments(1))
        found = first_difference(one, many) or first_stray(one, two, many, count)
    except Exception as error:
        # The model's own code, run with one token: whatever it raises, it does not serve one.
        found = _first_line(error)
    if found is None:
        return 1, ()
    return 2, (Decision("smallest token count", 1, 2, f"one token runs other operators ({found})"),)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
