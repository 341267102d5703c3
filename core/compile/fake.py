"""Fake inputs of a piece, made from its signature alone: one fresh symbol for the token count."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from graphkiln.core.compile.pieces import TOKENS, PieceInput, SymbolInput
from graphkiln.core.compile.settings import InductorSettings


def fake_inputs(
    inputs: tuple[PieceInput, ...], settings: InductorSettings
) -> tuple[FakeTensorMode, list[Any], sympy.Symbol]:
    """Returns fake tensors and sizes for a piece's inputs, over one fresh symbol for the token count."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    size: Any
    if settings.unbacked:
        # The symbol comes from outside and not from the first operator that is traced after it.
        with env.ignore_fresh_unbacked_symbols():
            size = env.create_unbacked_symint()
        env.constrain_symbol_range(
            size.node.expr, compiler_min=settings.smallest, compiler_max=settings.largest
        )
    else:
        source = ConstantSource(TOKENS)
        symbol = env.create_symbol(settings.hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        env.constrain_symbol_range(
            symbol, compiler_min=max(2, settings.smallest), compiler_max=settings.largest
        )
        size = env.create_symintnode(symbol, hint=settings.hint, source=source)
    values: list[Any] = []
    with mode:
        for spec in inputs:
            if isinstance(spec, SymbolInput):
                values.append(_evaluated(spec.expression, size))
            else:
                values.append(
                    torch.empty_strided(
                        [_evaluated(item, size) for item in spec.shape],
                        [_evaluated(item, size) for item in spec.stride],
                        dtype=getattr(torch, spec.dtype.removeprefix("torch.")),
                        device=spec.device,
                    )
                )
    return mode, values, size.node.expr


def _evaluated(item: int | str, size: Any) -> Any:
    if isinstance(item, int):
        return item
    # The text came from sympy over the one symbol T: integers, sums, products, floor divisions.
    tokens = sympy.Symbol(TOKENS, integer=True, positive=True)
    expression = sympy.sympify(item, locals={TOKENS: tokens})
    if expression.is_Integer:
        return int(expression)
    return sympy.lambdify(
        tokens, expression, modules=[{"FloorDiv": lambda a, b: a // b, "Mod": lambda a, b: a % b}]
    )(size)
