"""Digests of modules and of everything that they import, from their text: nothing is imported.

A digest is that of the syntax tree without comments, positions and docstrings. Imports are followed
wherever a module's text has one, in functions too, as far as Python source goes that is ours or the
user's. torch is left out, because the compiler factor digests it whole, and so is the standard
library, which Python's version stands for; an installed package that is not the user's own is one
version. What a module imports by a name that it computes is not seen.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import SourceUnreadable
from graphkiln.cache.factors.modules import locate

_COVERED = sys.stdlib_module_names | {"torch", "functorch", "torchgen"}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# The context of a name follows from its place; type comments and the u of u"" change no code.
_LEFT_OUT = frozenset({"ctx", "type_comment", "kind", "type_ignores"})
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


@dataclass(frozen=True)
class ModuleSource:
    """One module as its file says.

    `imports` are the dotted names that it may import, `at_import` those of them that stand outside of
    functions; `names` what it defines at its top level, None where that cannot be known.
    """

    digest: str
    imports: frozenset[str]
    at_import: frozenset[str]
    names: frozenset[str] | None


def import_closure(modules: Iterable[str], own: Collection[str]) -> dict[str, str]:
    """Returns `{module: digest}` of modules and of all that they import, an installed package by its version.

    `own` are top-level packages whose modules are followed though they are installed. A package that
    is there only because a module inside it is imported counts with what it runs at import.
    """
    found: dict[str, str] = {}
    done: set[tuple[str, bool]] = set()
    pending = [(name, True) for name in modules]
    while pending:
        name, by_name = pending.pop()
        top = name.partition(".")[0]
        if top in _COVERED or not {(name, True), (name, by_name)}.isdisjoint(done):
            continue
        done.add((name, by_name))
        path = locate(name)
        if top not in own and (path is None or _is_installed(path)):
            version = _version(top)
            if version is not None:
                found[top] = version
        elif path is not None:
            source = read_module(name, path)
            found[name] = source.digest
            pending += [(target, True) for target in (source.imports if by_name else source.at_import)]
        if "." in name:
            pending.append((name.rpartition(".")[0], False))
    return dict(sorted(found.items()))


def read_module(name: str, path: Path) -> ModuleSource:
    """Returns a module's file as digest, imports and names. Raises SourceUnreadable."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceUnreadable(str(path), error.strerror or str(error)) from None
    known = _read.get(name)
    if known is None or known[0] != (path, data):
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise SourceUnreadable(str(path), f"it does not parse: {error}") from None
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        source = ModuleSource(
            imports=frozenset(_imported(tree, package, late=True)),
            at_import=frozenset(_imported(tree, package, late=False)),
            names=_names(tree),
            digest=_digest(tree),
        )
        known = _read[name] = ((path, data), source)
    return known[1]


_read: dict[str, tuple[tuple[Path, bytes], ModuleSource]] = {}


def syntax_digest(source: bytes) -> str:
    """Returns a short digest of a source text that comments and docstrings do not change."""
    return _digest(ast.parse(source))


def _digest(tree: ast.Module) -> str:
    # The tree in prefix form. Every start digests dozens of files, and `ast.dump` takes twice as long.
    text: list[str] = []
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is list:
            text.append(f"[{len(node)}")
            pending += node
        elif isinstance(node, ast.AST):
            fields = _FIELDS.get(kind)
            if fields is None:
                fields = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _LEFT_OUT)
            values = [getattr(node, name, None) for name in fields]
            if isinstance(node, _DOCUMENTED):
                values[fields.index("body")] = _without_docstring(node.body)
            text.append(kind.__name__)
            pending += values
        else:
            text.append(repr(node))
    return hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant()), *rest]:
            return rest
    return body


def _imported(tree: ast.AST, package: str, *, late: bool) -> Iterator[str]:
    """Gives every dotted name that an import may load; of `from a import b` both `a` and `a.b`."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.If) and _is_for_types_only(node.test):
            pending += node.orelse
        elif late or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return str(node.module)
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _is_for_types_only(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _names(tree: ast.Module) -> frozenset[str] | None:
    found: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif not isinstance(node, ast.Lambda):
            pending += ast.iter_child_nodes(node)
    return None if found & {"*", "__getattr__"} else frozenset(found)


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _version(top: str) -> str | None:
    try:
        return f"version {metadata.version(top)}"
    except metadata.PackageNotFoundError:
        return None
