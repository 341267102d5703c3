"""Facts about shapes that a trace, or Inductor after it, took for granted, held against a range.

Tried on torch 2.13.0; private there: `value_ranges.bound_sympy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from graphkiln.core.errors import Bypass, ShapeLimited

_FUNCTIONS: dict[str, Any] = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ModularIndexing": lambda a, b, c: (a // b) % c,
    "Max": max,
    "Min": min,
}


# So many counts are tried one by one: in an instant, and more than a step has tokens in practice.
_TRIED = 1 << 14


@dataclass(frozen=True)
class ShapeFact:
    """A condition on the token count, and the source line that asked for it ("" when unknown)."""

    expression: sympy.Basic
    line: str

    @property
    def text(self) -> str:
        """The condition with its symbol called T."""
        names = {symbol: sympy.Symbol("T") for symbol in self.expression.free_symbols}
        return str(self.expression.xreplace(names))


def facts_of(shape_env: Any) -> list[ShapeFact]:
    """Returns the facts that a ShapeEnv recorded, in order: later ones hold only under earlier ones."""
    found = [ShapeFact(guard.expr, _line(guard.sloc)) for guard in shape_env.guards]
    for asserts in shape_env.deferred_runtime_asserts.values():
        found.extend(ShapeFact(item.expr, "") for item in asserts)
    return found


def require(facts: Iterable[ShapeFact], tokens: frozenset[sympy.Symbol], smallest: int, largest: int) -> None:
    """Raises ShapeLimited with the first token count in [smallest, largest] for which a fact is false.

    A fact that ties two token counts is the door's business; any other fact over two sizes raises Bypass.
    """
    for fact in facts:
        symbols = fact.expression.free_symbols
        if not symbols:
            if fact.expression == sympy.false:
                raise ShapeLimited(smallest, fact.text, fact.line)
            continue
        if not symbols <= tokens:
            raise Bypass("code", f"the trace depends on a size that data decides: {fact.text}")
        if len(symbols) > 1:
            if isinstance(fact.expression, sympy.Eq) and all(side in tokens for side in fact.expression.args):
                continue
            # Token counts are one number; a fact that needs them to differ cannot be kept.
            one = next(iter(symbols))
            fact = ShapeFact(fact.expression.xreplace(dict.fromkeys(symbols, one)), fact.line)
            symbols = frozenset({one})
        failing = first_failure(fact.expression, smallest, largest)
        if failing is not None:
            raise ShapeLimited(failing, fact.text, fact.line)


def first_failure(expression: sympy.Basic, smallest: int, largest: int) -> int | None:
    """Returns the first count in [smallest, largest] for which a condition over one symbol is false.

    Every count of a range of a few thousand is tried, so that no solver has to be trusted. A longer one
    is halved until torch's own bounds tell of a part that it holds, or fails, for all of it.
    """
    if expression in (sympy.true, sympy.false):
        return None if expression == sympy.true else smallest
    (symbol,) = expression.free_symbols
    holds = sympy.lambdify(symbol, expression, modules=[_FUNCTIONS, "math"])

    def tried(start: int, end: int) -> int | None:
        for count in range(start, end + 1):
            try:
                if not holds(count):
                    return count
            except ZeroDivisionError:
                return count
        return None

    parts = [(smallest, largest)]
    while parts:
        start, end = parts.pop()
        known = None if end - start < _TRIED else _known(expression, symbol, start, end)
        if known is False:
            return start
        if known is None and end - start >= _TRIED:
            middle = (start + end) // 2
            parts += [(middle + 1, end), (start, middle)]
        elif known is None and (failing := tried(start, end)) is not None:
            return failing
    return None


def _known(expression: sympy.Basic, symbol: Any, start: int, end: int) -> bool | None:
    """Returns what a condition is for every count of a range, None where its bounds do not tell."""
    try:
        bounds: Any = bound_sympy(expression, {symbol: ValueRanges(start, end)})
    except Exception:
        # A function that torch knows no bounds of: the counts themselves tell.
        return None
    return bool(bounds.lower) if bounds.is_bool and bounds.lower == bounds.upper else None


def _line(location: Any) -> str:
    where = getattr(location, "maybe_user_loc", None)
    if not where:
        return ""
    # `code  # file.py:70 in name`: torch already shortens the path to the file's name.
    return re.sub(r"\s+", " ", str(where)).strip()
