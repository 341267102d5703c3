"""Running a wiring: registers, pieces and eager ops, without Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphkiln.core.compile.sealed import SealedPiece
from graphkiln.core.errors import LoadRefused
from graphkiln.core.trace.door import Door
from graphkiln.core.trace.observe import untyped_constant
from graphkiln.core.trace.outputs import rebuild

WIRING_FORMAT = 1

# A register, or a constant, of a step's arguments.
_Fetch = Callable[[list[Any]], Any]
_Step = Callable[[list[Any]], None]


class CompiledPart:
    """One compiled part bound to a live module's parameters: call it in place of the module's forward."""

    def __init__(
        self,
        wiring: Mapping[str, Any],
        pieces: Sequence[SealedPiece],
        module: torch.nn.Module,
        walk: Callable[[Any], Any],
    ) -> None:
        if wiring.get("format") != WIRING_FORMAT:
            raise LoadRefused(
                "wiring", f"format {wiring.get('format')!r}, this version reads {WIRING_FORMAT}"
            )
        self.door = Door(wiring["door"], type(module).forward.__get__(module))
        self._names = [row["name"] for row in wiring["door"]["arguments"]]
        tensors = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        self._fixed: list[Any] = [None] * int(wiring["registers"])
        self._from_call: list[tuple[int, int, str | None]] = []
        self._tokens: list[int] = []
        for register, spec in enumerate(wiring["inputs"]):
            if "parameter" in spec:
                self._fixed[register] = tensors[spec["parameter"]]
            elif "path" in spec:
                self._fixed[register] = walk(spec["path"])
            elif "tokens" in spec:
                self._tokens.append(register)
            else:
                self._from_call.append((register, int(spec["argument"]), spec.get("member")))
        self._steps = [_step(step, pieces) for step in wiring["steps"]]
        self._outputs = [_fetch(value) for value in wiring["outputs"]]
        self._structure = wiring["structure"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the part. Raises DoorError when the call is not one that it was compiled for."""
        values = self.door.ordered(args, kwargs)
        tokens = self.door.check(values)
        registers = self._fixed.copy()
        for register in self._tokens:
            registers[register] = tokens
        for register, index, member in self._from_call:
            registers[register] = values[index] if member is None else values[index][member]
        for step in self._steps:
            step(registers)
        outputs = [fetch(registers) for fetch in self._outputs]
        return rebuild(self._structure, outputs, dict(zip(self._names, values, strict=True)))


def _fetch(value: Sequence[Any]) -> _Fetch:
    kind, content = value
    if kind == "r":
        index = int(content)
        return lambda registers: registers[index]
    if kind == "l":
        members = [_fetch(item) for item in content]
        return lambda registers: [member(registers) for member in members]
    constant = untyped_constant(content)
    return lambda registers: constant


def _step(step: Mapping[str, Any], pieces: Sequence[SealedPiece]) -> _Step:
    outs, free = [int(out) for out in step["outs"]], [int(register) for register in step.get("free", ())]
    if "piece" in step:
        piece = pieces[step["piece"]]
        fetches = [_fetch(value) for value in step["args"]]

        def run_piece(registers: list[Any]) -> None:
            results = piece([fetch(registers) for fetch in fetches])
            for out, result in zip(outs, results, strict=True):
                registers[out] = result
            for register in free:
                registers[register] = None

        return run_piece
    if "item" in step:
        source, index = _fetch(step["item"]), step["index"]

        def run_item(registers: list[Any]) -> None:
            registers[outs[0]] = source(registers)[index]
            for register in free:
                registers[register] = None

        return run_item
    from graphkiln.core.trace.custom_ops import find_op

    op = find_op(step["op"])
    if op is None:
        raise LoadRefused("wiring", f"the op {step['op']} is not registered in this process")
    fetches = [_fetch(value) for value in step["args"]]
    named = {name: _fetch(value) for name, value in step.get("kwargs", {}).items()}

    def run_op(registers: list[Any]) -> None:
        registers[outs[0]] = op(
            *(fetch(registers) for fetch in fetches),
            **{name: fetch(registers) for name, fetch in named.items()},
        )
        for register in free:
            registers[register] = None

    return run_op
