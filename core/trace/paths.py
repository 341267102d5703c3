"""Paths to the objects that a trace looked at: written from Dynamo's sources, walked without Dynamo.

A path is a list of steps from a root. Roots: `["self"]` the traced module, `["module", name]` an
imported module, `["builtins"]` the builtins' dict. Steps: `["attr", a]`, `["gattr", a]` (past any
`__getattr__`), `["ditem", key]`, `["item", index]`, `["type"]`, `["mro"]`, `["tdict"]`,
`["nthkey", i]`, `["nthval", i]`. Keys are typed constants (`observe.typed_constant`).

Source classes as of torch 2.11 and 2.13; an unknown one is refused by name.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo import source as sources

from graphkiln.core.errors import Bypass
from graphkiln.core.trace.observe import typed_constant, untyped_constant

Path = list[Any]


class PathBroken(Exception):
    """A stored path leads nowhere in the live model: `step` is where it ended."""

    def __init__(self, step: Any) -> None:
        super().__init__(step)
        self.step = step


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


@dataclass
class Walker:
    """Follows paths through a live module, remembering every prefix it has been through."""

    root: torch.nn.Module
    _seen: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def walk(self, path: Path) -> Any:
        """Returns the object at the end of `path`. Raises PathBroken where it ends too early."""
        return self._at(tuple(_frozen(step) for step in path))

    def _at(self, steps: tuple[Any, ...]) -> Any:
        if steps in self._seen:
            return self._seen[steps]
        try:
            if len(steps) == 1:
                value = self._root(steps[0])
            else:
                value = _step(self._at(steps[:-1]), steps[-1])
        except PathBroken:
            raise
        except Exception as error:
            # Attribute access runs the model's own code, which may raise anything.
            raise PathBroken(list(steps[-1])) from error
        self._seen[steps] = value
        return value

    def _root(self, step: tuple[Any, ...]) -> Any:
        if step[0] == "self":
            return self.root
        if step[0] == "module":
            return importlib.import_module(step[1])
        if step[0] == "builtins":
            return builtins.__dict__
        raise PathBroken(list(step))


def _frozen(step: Any) -> Any:
    return tuple(_frozen(item) for item in step) if isinstance(step, (list, tuple)) else step


def _step(value: Any, step: tuple[Any, ...]) -> Any:
    kind = step[0]
    if kind == "attr":
        return getattr(value, step[1])
    if kind == "gattr":
        return object.__getattribute__(value, step[1])
    if kind == "ditem":
        return dict.__getitem__(value, untyped_constant(step[1])) if isinstance(value, dict) else value[
            untyped_constant(step[1])
        ]
    if kind == "item":
        return value[untyped_constant(step[1])]
    if kind == "type":
        return type(value)
    if kind == "mro":
        return type.__getattribute__(value, "__mro__")
    if kind == "tdict":
        # Dynamo reads a copy of the class's dict, not its proxy.
        return dict(type.__getattribute__(value, "__dict__"))
    if kind == "nthkey":
        return list(value.keys())[step[1]]
    if kind == "nthval":
        return list(value.values())[step[1]]
    raise PathBroken(list(step))


def path_text(path: Path) -> str:
    """Returns a path as a person would write it."""
    text = ""
    for step in path:
        kind = step[0]
        if kind in ("self", "builtins"):
            text = kind
        elif kind == "module":
            text = step[1]
        elif kind in ("attr", "gattr"):
            text += f".{step[1]}"
        elif kind in ("ditem", "item"):
            text += f"[{untyped_constant(step[1])!r}]"
        elif kind in ("nthkey", "nthval"):
            text += f".{'keys' if kind == 'nthkey' else 'values'}()[{step[1]}]"
        else:
            text = f"type({text})" if kind == "type" else f"{text}.{'__mro__' if kind == 'mro' else '__dict__'}"
    return text
