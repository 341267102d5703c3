"""Paths to the objects that a trace looked at, walked through a live module without Dynamo.

A path is a list of steps from a root. Roots: `["self"]` the traced module, `["module", name]` an
imported module, `["builtins"]` the builtins' dict. Steps: `["attr", a]`, `["gattr", a]` (past any
`__getattr__`), `["ditem", key]`, `["item", index]`, `["type"]`, `["mro"]`, `["tdict"]`,
`["nthkey", i]`, `["nthval", i]`. Keys are typed constants (`observe.typed_constant`).
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from graphkiln.core.trace.observe import untyped_constant

Path = list[Any]


class PathBroken(Exception):
    """A stored path leads nowhere in the live model: `step` is where it ended."""

    def __init__(self, step: Any) -> None:
        super().__init__(step)
        self.step = step


@dataclass
class Walker:
    """Follows paths through a live module, remembering every prefix it has been through."""

    root: torch.nn.Module
    _seen: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def walk(self, path: Path) -> Any:
        """Returns the object at the end of `path`. Raises PathBroken where it ends too early."""
        return self._at(tuple([_frozen(step) for step in path]))

    def _at(self, steps: tuple[Any, ...]) -> Any:
        if steps in self._seen:
            return self._seen[steps]
        try:
            value = _step(self._at(steps[:-1]), steps[-1]) if len(steps) > 1 else self._root(steps[0])
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


def _frozen(step: Sequence[Any]) -> tuple[Any, ...]:
    # Of 80 layers there are a hundred thousand: a list in between costs less than a generator.
    return tuple([_frozen(item) if isinstance(item, (list, tuple)) else item for item in step])


def _step(value: Any, step: tuple[Any, ...]) -> Any:
    kind = step[0]
    if kind == "attr":
        return getattr(value, step[1])
    if kind == "gattr":
        return object.__getattribute__(value, step[1])
    if kind == "ditem":
        key = untyped_constant(step[1])
        return dict.__getitem__(value, key) if isinstance(value, dict) else value[key]
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
