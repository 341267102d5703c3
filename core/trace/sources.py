"""From Dynamo's sources to paths that can be stored: while compiling only.

Source classes as of torch 2.11 and 2.13; an unknown one is refused by name.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch._dynamo import source as sources

from graphkiln.core.errors import Bypass
from graphkiln.core.trace.observe import typed_constant
from graphkiln.core.trace.paths import Path


@dataclass
class Aliases:
    """What Dynamo's invented global names stand for, copied from its output graph."""

    imports: Mapping[str, str]
    builtins_name: str | None
    global_scope: Mapping[str, Any]
    root_module: str
    root_names: frozenset[str]


_TRANSPARENT = (sources.NNModuleSource, sources.SkipGuardSource, sources.OptimizerSource)


def argument_of(source: Any) -> str | None:
    """Returns the name of the call argument that a source starts from, None for any other root."""
    while hasattr(source, "base"):
        source = source.base
    if isinstance(source, sources.LocalSource) and source.local_name != "self":
        return str(source.local_name)
    return None


def path_of(source: Any, aliases: Aliases) -> Path:
    """Returns the path that a Dynamo source stands for. Raises Bypass for one that cannot be named."""
    if isinstance(source, sources.LocalSource):
        if source.local_name != "self":
            raise Bypass("code", f"a guard on call argument {source.local_name}")
        return [["self"]]
    if isinstance(source, sources.GlobalSource):
        return _global(source.global_name, aliases)
    if isinstance(source, sources.ImportSource):
        return [["module", source.module_name]]
    if isinstance(source, _TRANSPARENT):
        return path_of(source.base, aliases)
    if isinstance(source, sources.ClosureSource):
        return [*path_of(source.base, aliases), ["attr", "__closure__"]]
    if isinstance(source, sources.CodeSource):
        return [*path_of(source.base, aliases), ["attr", "__code__"]]
    if isinstance(source, sources.AttrSource):
        path = path_of(source.base, aliases)
        for part in str(source.member).split("."):
            path = [*path, ["attr", part]]
        return path
    if isinstance(source, sources.GenericAttrSource):
        return [*path_of(source.base, aliases), ["gattr", source.member]]
    if isinstance(source, sources.DefaultsSource):
        key = ["ditem" if source.is_kw else "item", typed_constant(source.idx_key)]
        return [*path_of(source.base, aliases), ["attr", source.field], key]
    if isinstance(source, (sources.DictGetItemSource, sources.DictSubclassGetItemSource)):
        if isinstance(source.index, sources.ConstDictKeySource):
            return [*path_of(source.base, aliases), ["nthval", source.index.index]]
        return [*path_of(source.base, aliases), ["ditem", typed_constant(source.index)]]
    if isinstance(source, sources.ConstDictKeySource):
        return [*path_of(source.base, aliases), ["nthkey", source.index]]
    if isinstance(source, sources.TupleIteratorGetItemSource):
        raise Bypass("code", "a guard on an iterator")
    if isinstance(source, sources.GetItemSource):
        index = source.unpack_slice() if source.index_is_slice else source.index
        return [*path_of(source.base, aliases), ["item", typed_constant(index)]]
    if isinstance(source, sources.TypeSource):
        return [*path_of(source.base, aliases), ["type"]]
    if isinstance(source, sources.TypeMROSource):
        return [*path_of(source.base, aliases), ["mro"]]
    if isinstance(source, sources.TypeDictSource):
        return [*path_of(source.base, aliases), ["tdict"]]
    raise Bypass("code", f"torch guards an object through {type(source).__name__}, which has no stored form")


def _global(name: str, aliases: Aliases) -> Path:
    if name in aliases.imports:
        return [["module", aliases.imports[name]]]
    if name == aliases.builtins_name:
        return [["builtins"]]
    if name in aliases.root_names:
        return [["module", aliases.root_module], ["attr", "__dict__"], ["ditem", typed_constant(name)]]
    # A name that Dynamo made up and that holds an id: find what stands behind it.
    value = aliases.global_scope.get(name)
    if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
        return [["module", value.__name__]]
    if isinstance(value, dict):
        owner = value.get("__name__")
        if isinstance(owner, str) and owner in sys.modules and sys.modules[owner].__dict__ is value:
            return [["module", owner], ["attr", "__dict__"]]
    raise Bypass("code", f"a guard on the global {name}, which cannot be named")
