"""Digests of the functions of a source text, from its syntax tree alone.

The text form of a tree is our own (node names and fields, no positions, empty fields left out)
because that of `ast.dump` differs between Python minors.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# The context of a name follows from its place; type comments and the u of u"" change no code.
_LEFT_OUT = frozenset({"ctx", "type_comment", "kind", "type_ignores"})
_COMPREHENSIONS: dict[type[ast.AST], str] = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}
# From 3.12 on these have no code object of their own, so that what is defined inside belongs to
# the scope around them. Generator expressions keep theirs.
_INLINED: frozenset[type[ast.AST]] = frozenset(
    {ast.ListComp, ast.SetComp, ast.DictComp} if sys.version_info >= (3, 12) else ()
)
# Long `elif` and `+` chains are as deep as they are long, and the compiler takes them.
_DEEP_RECURSION = 20_000


# At the end of a digest of several functions that share a name and are not the same.
SEVERAL = "*"


def function_digests(text: str) -> dict[str, str]:
    """Return {qualified name: digest of the ordered list of all nodes of that name}.

    A digest that ends in `*` stands for several functions that differ: which of them an object is, the
    name does not tell.
    Raises what `ast.parse` raises, and RecursionError for a tree deeper than any real one.
    """
    tree = ast.parse(text)
    try:
        return _digests_of(tree)
    except RecursionError:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(max(usual, _DEEP_RECURSION))
        try:
            return _digests_of(tree)
        finally:
            sys.setrecursionlimit(usual)


def _digests_of(tree: ast.Module) -> dict[str, str]:
    walk = _Walk()
    walk.dump(tree, _Scope("", _globals_of(tree.body)))
    return {
        name: _sha256("\n".join(digests)) + (SEVERAL if len(set(digests)) > 1 else "")
        for name, digests in walk.found.items()
    }


@dataclass(frozen=True)
class _Scope:
    """What names defined here are prefixed with, and the names declared global here."""

    prefix: str
    declared_global: frozenset[str]

    def qualname(self, name: str) -> str:
        return name if name in self.declared_global else self.prefix + name


class _Walk:
    """One pass over a tree that gives its text form and, on the way, each function's digest."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self._special = {
            ast.Constant: _constant,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Lambda: self._lambda,
            **dict.fromkeys(_COMPREHENSIONS, self._comprehension),
        }

    def dump(self, node: Any, scope: _Scope) -> str:
        """Return the text form of a node, a list of nodes, or a plain field value."""
        kind = type(node)
        if kind is list:
            dump = self.dump
            return "[" + " ".join([dump(item, scope) for item in node]) + "]"
        fields = _FIELDS.get(kind)
        if fields is None:
            if not isinstance(node, ast.AST):
                # An identifier, a small number, or the None that stands for `**` in a dict.
                return str(node)
            fields = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _LEFT_OUT)
        if not fields:
            return kind.__name__
        special = self._special.get(kind)
        if special is not None:
            return special(node, scope)
        dump = self.dump
        text = "(" + kind.__name__
        for name in fields:
            value = getattr(node, name, None)
            if type(value) is str:
                text += f" {name}={value}"
            elif value is not None and value != []:
                text += f" {name}={dump(value, scope)}"
        return text + ")"

    def _function(self, node: Any, scope: _Scope) -> str:
        qualname = scope.qualname(node.name)
        inside = _Scope(f"{qualname}.<locals>.", _globals_of(node.body))
        # Defaults, annotations and decorators are evaluated in the scope around the function.
        head = self._fields(node, scope, leave_out=("body",))
        return self._keep(qualname, f"({head} body={self.dump(_without_docstring(node.body), inside)})")

    def _class(self, node: Any, scope: _Scope) -> str:
        inside = _Scope(f"{scope.qualname(node.name)}.", _globals_of(node.body))
        head = self._fields(node, scope, leave_out=("body",))
        return f"({head} body={self.dump(_without_docstring(node.body), inside)})"

    def _lambda(self, node: Any, scope: _Scope) -> str:
        head = self._fields(node, scope, leave_out=("body",))
        qualname = scope.prefix + "<lambda>"
        body = self.dump(node.body, _Scope(f"{qualname}.<locals>.", frozenset()))
        return self._keep(qualname, f"({head} body={body})")

    def _comprehension(self, node: Any, scope: _Scope) -> str:
        kind = type(node)
        qualname = scope.prefix + _COMPREHENSIONS[kind]
        # Unlike a function's, a comprehension's scope adds no `<locals>` to the names inside it.
        inside = scope if kind in _INLINED else _Scope(f"{qualname}.", frozenset())
        # The first iterable is evaluated in the scope around the comprehension.
        first, *others = node.generators
        text = f"({kind.__name__} first={self.dump(first.iter, scope)}"
        text += f" generator={self._fields(first, inside, leave_out=('iter',))}"
        text += f" others={self.dump(others, inside)}"
        return self._keep(qualname, f"{text} {self._fields(node, inside, leave_out=('generators',))})")

    def _fields(self, node: ast.AST, scope: _Scope, leave_out: tuple[str, ...]) -> str:
        text = type(node).__name__
        for name in type(node)._fields:
            value = getattr(node, name, None)
            if name not in leave_out and name not in _LEFT_OUT and value is not None and value != []:
                text += f" {name}={self.dump(value, scope)}"
        return text

    def _keep(self, qualname: str, text: str) -> str:
        self.found.setdefault(qualname, []).append(_sha256(text))
        return text


_FIELDS: dict[type[Any], tuple[str, ...]] = {}


def _constant(node: Any, scope: _Scope) -> str:
    # The type is part of it: 1, 1.0 and True are three constants.
    return f"(Constant {type(node.value).__name__} {node.value!r})"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _globals_of(body: list[ast.stmt]) -> frozenset[str]:
    """Return the names that `global` statements of this scope, nested blocks included, declare."""
    return frozenset(name for statement in _statements(body) for name in _declared(statement))


def _declared(statement: ast.AST) -> list[str]:
    return statement.names if isinstance(statement, ast.Global) else []


def _statements(body: list[Any]) -> Iterator[ast.AST]:
    """Yield the statements of a scope and of its blocks, but not of functions and classes in it."""
    waiting = list(body)
    while waiting:
        statement = waiting.pop()
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                block = getattr(statement, name, None)
                if isinstance(block, list):
                    waiting.extend(block)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
