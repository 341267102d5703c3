"""`wiring.json`: a split graph as steps over numbered registers, enough to run it without Dynamo.

    inputs     what fills the first registers: call arguments, the token count, parameters, objects on a path
    steps      in order: a piece, or an op that stays eager; `free` lists registers that are dead after it
    outputs    registers of the graph's outputs; `structure` says how the result is built of them
    pieces     distinct pieces: fingerprint, artifact, range
    door       what every call must bring

A value in a step's arguments is `["r", n]` for a register, `["c", constant]`, or `["l", [...]]`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from graphkiln.core.compile.split import SplitGraph
from graphkiln.core.errors import CompileError
from graphkiln.core.trace.arguments import IntermediateTensors
from graphkiln.core.trace.capture import Capture
from graphkiln.core.trace.observe import typed_constant
from graphkiln.core.trace.signature import named_tensors
from graphkiln.core.trace.sources import path_of


class Wiring:
    """Builds the registers and steps of one split graph."""

    def __init__(self, split: SplitGraph, piece_of: Mapping[str, int]) -> None:
        """`piece_of` maps the name of every compiled part to the number of its distinct piece."""
        self.steps: list[dict[str, Any]] = []
        self.outputs: list[Any] = []
        self._count = 0
        self._register: dict[fx.Node, int] = {}
        self._results: dict[fx.Node, list[Any]] = {}
        parts = {part.name: part for part in split.parts}
        for node in split.outer.graph.nodes:
            if node.op == "placeholder":
                self._register[node] = self._new()
            elif node.op == "call_module":
                part = parts[str(node.target)]
                arguments = [self._value(arg) for arg in node.args]
                if part.splitting:
                    self._results[node] = self._eager(part.module, arguments)
                else:
                    self._results[node] = self._piece(part.module, piece_of[part.name], arguments)
            elif node.op == "call_function" and node.target is operator.getitem:
                self._results[node] = [self._results[node.args[0]][node.args[1]]]
            elif node.op == "output":
                self.outputs = [self._value(arg) for arg in node.args[0]]
            else:
                raise CompileError(
                    "graph", f"its outer graph holds {node.op} {node.target}", "report this model"
                )
        self._free_dead()

    @property
    def registers(self) -> int:
        """How many registers the steps use."""
        return self._count

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _value(self, arg: Any) -> list[Any]:
        if isinstance(arg, fx.Node):
            if arg in self._register:
                return ["r", self._register[arg]]
            return list(self._results[arg][0])
        if isinstance(arg, (tuple, list)):
            return ["l", [self._value(item) for item in arg]]
        return ["c", typed_constant(arg)]

    def _piece(self, module: fx.GraphModule, piece: int, arguments: list[Any]) -> list[Any]:
        outs = [self._new() for _ in _output_of(module)]
        self.steps.append({"piece": piece, "args": arguments, "outs": outs})
        return [["r", out] for out in outs]

    def _eager(self, module: fx.GraphModule, arguments: list[Any]) -> list[Any]:
        """Flattens a part of splitting ops into single steps."""
        inside = iter(arguments)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self._results[node] = [next(inside)]
            elif node.op == "call_function" and node.target is operator.getitem:
                out = self._new()
                self.steps.append({"item": self._value(node.args[0]), "index": node.args[1], "outs": [out]})
                self._register[node] = out
            elif node.op == "call_function":
                out = self._new()
                kwargs = {name: self._value(value) for name, value in node.kwargs.items()}
                step = {"op": _op(node), "args": [self._value(arg) for arg in node.args], "outs": [out]}
                self.steps.append({**step, "kwargs": kwargs} if kwargs else step)
                self._register[node] = out
            elif node.op != "output":
                raise CompileError(
                    "graph", f"a splitting part holds {node.op} {node.target}", "report this model"
                )
        return [self._value(arg) for arg in _output_of(module)]

    def _free_dead(self) -> None:
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for register in _registers(
                [step.get("args", []), step.get("item"), list(step.get("kwargs", {}).values())]
            ):
                last[register] = number
            for register in step["outs"]:
                last.setdefault(register, number)
        kept = set(_registers(self.outputs))
        for register, number in sorted(last.items()):
            if register not in kept:
                self.steps[number].setdefault("free", []).append(register)


def _output_of(module: fx.GraphModule) -> Sequence[Any]:
    value = next(node for node in module.graph.nodes if node.op == "output").args[0]
    return value if isinstance(value, (tuple, list)) else (value,)


def _op(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, target.overloads()[0])
    if not isinstance(target, torch._ops.OpOverload):
        raise CompileError(
            "graph", f"a splitting part calls {target}", "list registered ops only as splitting_ops"
        )
    return f"{target._schema.name}.{target._overloadname}"


def _registers(value: Any) -> list[int]:
    if isinstance(value, list):
        if len(value) == 2 and value[0] == "r" and isinstance(value[1], int):
            return [value[1]]
        return [register for item in value for register in _registers(item)]
    return []


def describe_inputs(module: torch.nn.Module, capture: Capture) -> list[Any]:
    """Returns what fills each input of the traced graph, in order.

    Parameters and buffers by name, call arguments by position (and member), the token count, anything
    else by the path that leads to it in the live model.
    """
    parameters: dict[int, str] = {}
    for name, tensor in named_tensors(module).items():
        parameters.setdefault(id(tensor), name)
    arguments: dict[int, dict[str, Any]] = {}
    for index, value in enumerate(capture.values):
        if isinstance(value, torch.Tensor):
            arguments[id(value)] = {"argument": index}
        elif isinstance(value, IntermediateTensors):
            for key, member in value.tensors.items():
                arguments[id(member)] = {"argument": index, "member": key}
    found: list[Any] = []
    for source, value in zip(capture.sources, capture.example_inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            # The only sizes that are dynamic are token counts, and the door holds them to be one number.
            found.append({"tokens": True})
        elif id(value) in parameters:
            found.append({"parameter": parameters[id(value)]})
        elif id(value) in arguments:
            found.append(arguments[id(value)])
        else:
            found.append({"path": path_of(source, capture.aliases)})
    return found


def describe_door(capture: Capture, dynamic: Mapping[str, Sequence[int]], smallest: int, largest: int) -> Any:
    """Returns what every call must bring: dtype, device and sizes of tensors, the value of anything else."""
    rows = [
        _door_row(name, value, dynamic.get(name, ()))
        for name, value in zip(capture.arguments, capture.values, strict=True)
    ]
    return {"arguments": rows, "smallest": smallest, "largest": largest}


def _door_row(name: str, value: Any, dims: Sequence[int]) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        dynamic = {dim % value.dim() for dim in dims}
        shape = [None if dim in dynamic else int(size) for dim, size in enumerate(value.shape)]
        return {"name": name, "dtype": str(value.dtype), "device": value.device.type, "shape": shape}
    if isinstance(value, IntermediateTensors):
        return {"name": name, "members": [_door_row(key, item, dims) for key, item in value.tensors.items()]}
    return {"name": name, "constant": typed_constant(value)}
