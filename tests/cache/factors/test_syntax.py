"""The names of the index are those that the compiler gives."""

from __future__ import annotations

import importlib.util
import inspect
import os
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphkiln.cache.factors.syntax import function_digests

LIBRARY = Path(os.__file__).parent
# Whatever has odd scopes: nested comprehensions, lambdas in defaults, classes in functions, globals.
FILES = [
    "ast.py",
    "dataclasses.py",
    "enum.py",
    "functools.py",
    "inspect.py",
    "typing.py",
    "posixpath.py",
    "pickle.py",
]

ODD = """
def outer(f=lambda: [lambda: 0 for _ in (lambda: 1,)]):
    global exported

    def exported():
        return {k: (lambda: k) for k in (x for x in (lambda: 2)())}

    class Inner(base(lambda: 3)):
        attribute = [y for y in range(3) if (lambda: y)]

        @wrap(lambda: 4)
        def method(self, a: (lambda: 5)):
            return lambda: (yield (lambda: z for z in a))

    async def waits():
        return [i async for i in (j async for j in f)]


if True:
    with something:
        def late(): return (lambda a=(lambda: 6): lambda: a)
"""


def code_names(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            # Class bodies and the scopes of type parameters are not functions.
            if constant.co_flags & inspect.CO_OPTIMIZED and "<generic parameters" not in constant.co_name:
                yield constant.co_qualname
            yield from code_names(constant)


@pytest.mark.parametrize("name", FILES)
def test_every_function_of_the_library_is_found_under_its_qualified_name(name: str) -> None:
    text = importlib.util.decode_source((LIBRARY / name).read_bytes())
    names = set(code_names(compile(text, name, "exec")))
    if name == "typing.py":
        # From 3.12 on its `type X = ...` statements are scopes of their own, which nothing calls.
        names -= {"F", "_Func"}
    assert names <= set(function_digests(text))
    assert len(names) > 10


def test_odd_scopes_are_named_as_the_compiler_names_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        names = set(code_names(compile(ODD, "odd", "exec")))
    assert names <= set(function_digests(ODD))
