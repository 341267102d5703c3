"""The functions that a trace went through or looked at, each by module, name and digest of its code."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import SourceUnreadable
from graphkiln.cache.factors.functions import file_digest, index_file, locate
from graphkiln.cache.factors.syntax import SEVERAL
from graphkiln.core.errors import Bypass

Functions = dict[str, dict[str, str]]

# Parts of torch in Python that decide what comes out of a trace and of Inductor: the compiler factor
# digests their files, and torch's own at the top, so that their functions need no records of their own.
TORCH_PARTS = (
    "_decomp", "_dynamo", "_export", "_functorch", "_higher_order_ops", "_inductor", "_library", "_prims",
    "_prims_common", "_refs", "_subclasses", "amp", "autograd", "fx", "nn", "utils",
)  # fmt: skip


class CodeDigests:
    """Digests of code objects from their source files, each file read once.

    `known` holds `{module: {"file_sha256": ..., "functions": ...}}` of an entry: where a file still
    has the recorded bytes, its recorded digests stand and the file is not parsed.
    """

    def __init__(self, known: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._known = known or {}
        self._by_file: dict[Path, Mapping[str, str] | None] = {}
        self._compiled: dict[Path, dict[str, set[str]]] = {}
        self.used: dict[str, dict[str, Any]] = {}

    def of(self, code: types.CodeType) -> str:
        """Returns the digest of a code object: of its source's syntax tree, or else of its bytecode.

        Code without source (made by `exec`, typed into a prompt, shipped as bytecode alone) is
        digested by what it does; that is stable within one Python minor version, which the key
        holds. Functions of torch are named by their file: the compiler factor covers their text.
        """
        module = module_of(code)
        if module is not None and covered(module):
            return f"torch {module}"
        found = self.from_source(module, code.co_qualname) if module is not None else None
        if found is None:
            return bytecode_digest(code)
        # Two definitions under one name, in two branches for example: the text does not say which is here.
        return f"{found}{bytecode_digest(code)}" if found.endswith(SEVERAL) else found

    def from_source(self, module: str, qualname: str) -> str | None:
        """Returns the digest of a function by name, None where its source cannot be read."""
        path = locate(module)
        if path is None:
            return None
        if path not in self._by_file:
            self._by_file[path] = self._read(module, path)
        functions = self._by_file[path]
        if functions is None:
            return None
        if qualname not in functions and module in self._known:
            # The shortcut holds only what was asked for when the entry was made.
            functions = self._by_file[path] = index_file(path).functions
        digest = functions.get(qualname)
        if digest is not None:
            entry = self.used.setdefault(module, {"file_sha256": file_digest(path), "functions": {}})
            entry["functions"][qualname] = digest
        return digest

    def require_same(self, module: str, code: types.CodeType) -> None:
        """Raises Bypass when a function in memory is not what its file says now.

        A file edited after it was imported would otherwise lend its name to other code.
        """
        path = locate(module)
        if path is None:
            return
        if path not in self._compiled:
            source = compile(path.read_bytes(), code.co_filename, "exec", dont_inherit=True)
            self._compiled[path] = _by_qualname(source)
        on_disk = self._compiled[path].get(code.co_qualname, set())
        if bytecode_digest(code) not in on_disk:
            reason = (
                f"{code.co_qualname} of {module} is not what its file says: it was edited after the import"
            )
            raise Bypass("code", reason)

    def _read(self, module: str, path: Path) -> Mapping[str, str] | None:
        try:
            known = self._known.get(module)
            if known is not None and file_digest(path) == known["file_sha256"]:
                return dict(known["functions"])
            return index_file(path).functions
        except SourceUnreadable:
            return None


def record_functions(
    codes: Iterable[types.CodeType], digests: CodeDigests, reachable: frozenset[str]
) -> Functions:
    """Returns `{module: {qualified name: digest}}` of traced code objects.

    `reachable` holds the bytecode digests that stored guards lead to: code without source is kept
    only there, and raises Bypass otherwise. Functions of torch are left out: the compiler factor
    covers them.
    """
    found: Functions = {}
    for code in codes:
        module = module_of(code)
        if module is not None and covered(module):
            continue
        digest = digests.from_source(module, code.co_qualname) if module is not None else None
        if module is None or digest is None:
            if bytecode_digest(code) in reachable or _is_generated(code):
                continue
            raise Bypass(
                "code", f"function {code.co_qualname} was traced and has no source that can be read again"
            )
        digests.require_same(module, code)
        found.setdefault(module, {})[code.co_qualname] = digest
    return found


def _by_qualname(code: types.CodeType) -> dict[str, set[str]]:
    """Returns the bytecode digests of all functions inside a code object, by qualified name."""
    found: dict[str, set[str]] = {}
    waiting = [code]
    while waiting:
        one = waiting.pop()
        found.setdefault(one.co_qualname, set()).add(bytecode_digest(one))
        waiting += [inner for inner in one.co_consts if isinstance(inner, types.CodeType)]
    return found


def covered(module: str) -> bool:
    """Says whether the compiler factor's source key covers a module: torch's own files and these parts."""
    root, _, rest = module.partition(".")
    part = rest.partition(".")
    return root == "torch" and (not part[1] or part[0] in TORCH_PARTS)


def module_of(code: types.CodeType) -> str | None:
    """Returns the module whose file a code object was compiled from.

    From the file and not from `__module__`, which `functools.wraps` copies from the wrapped function.
    """
    name = code.co_filename
    if name.startswith("<frozen "):
        return name[len("<frozen ") : -1]
    return _modules_by_file().get(name)


_by_file: tuple[int, Mapping[str, str]] = (0, {})


def _modules_by_file() -> Mapping[str, str]:
    global _by_file
    count = len(sys.modules)
    if _by_file[0] != count:
        table: dict[str, str] = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            # `python -m package.module` runs it as __main__ too: the importable name wins.
            if isinstance(file, str) and (name != "__main__" or file not in table):
                table[file] = name
        _by_file = (count, table)
    return _by_file[1]


def bytecode_digest(code: types.CodeType) -> str:
    """Returns the SHA-256 of a code object's instructions, constants and names, without any position."""

    def text(value: Any) -> str:
        if isinstance(value, types.CodeType):
            return f"code({bytecode_digest(value)})"
        if isinstance(value, (frozenset, set)):
            return f"set({sorted(text(item) for item in value)})"
        if isinstance(value, tuple):
            return f"tuple({[text(item) for item in value]})"
        return f"{type(value).__name__}({value!r})"

    parts = (
        code.co_code.hex(),
        text(code.co_consts),
        repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)),
        repr((code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_generated(code: types.CodeType) -> bool:
    """Says whether the standard library wrote this code from a class whose own source is recorded."""
    return code.co_filename == "<string>" and code.co_name in (
        "__init__",
        "__new__",
        "__eq__",
        "__hash__",
        "__repr__",
    )
