"""What a traced forward gives back, as data: which graph output stands where.

Dynamo's bytecode rebuilds the caller's structure from the graph's outputs. It is run once with a
marker in place of each output, and what it builds is read off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphkiln.core.errors import CompileError
from graphkiln.core.trace.arguments import IntermediateTensors
from graphkiln.core.trace.observe import type_name


class OutputMarker:
    """Stands for output `index` of the graph."""

    def __init__(self, index: int) -> None:
        self.index = index


def structure_of(value: Any, arguments: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Returns the structure of a forward's result: `["out", i]`, `["argument", name]`, lists, tuples, dicts.

    Raises CompileError for an object that only the model's own code could build again.
    """
    if isinstance(value, OutputMarker):
        return ["out", value.index]
    for name, argument in zip(names, arguments, strict=True):
        if value is argument and isinstance(argument, torch.Tensor):
            return ["argument", name]
    if value is None or type(value) in (bool, int, float, str):
        return ["constant", value]
    if type(value) in (tuple, list):
        return [type(value).__name__, [structure_of(item, arguments, names) for item in value]]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return ["dict", {key: structure_of(item, arguments, names) for key, item in value.items()}]
    if isinstance(value, IntermediateTensors):
        return [
            "intermediate",
            {key: structure_of(item, arguments, names) for key, item in value.tensors.items()},
        ]
    raise CompileError(
        "forward",
        f"it returns a {type_name(type(value))}",
        "return tensors, or tuples, lists and dicts of them",
    )


def rebuild(structure: Sequence[Any], outputs: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
    """Returns the result that `structure` describes, made of a graph's outputs and the call's arguments."""
    kind, content = structure
    if kind == "out":
        return outputs[content]
    if kind == "argument":
        return arguments[content]
    if kind == "constant":
        return content
    if kind == "tuple":
        return tuple(rebuild(item, outputs, arguments) for item in content)
    if kind == "list":
        return [rebuild(item, outputs, arguments) for item in content]
    built = {key: rebuild(item, outputs, arguments) for key, item in content.items()}
    return IntermediateTensors(built) if kind == "intermediate" else built
