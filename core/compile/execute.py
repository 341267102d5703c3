"""Running a wiring: registers, pieces and eager ops, without Dynamo."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from graphkiln.cache.errors import GraphkilnError
from graphkiln.core.compile.held import HeldPiece
from graphkiln.core.compile.piece_names import piece_arguments
from graphkiln.core.errors import DoorError, LoadRefused, StepFailed
from graphkiln.core.trace.door import Door
from graphkiln.core.trace.observe import untyped_constant
from graphkiln.core.trace.outputs import rebuild

WIRING_FORMAT = 1
# What Python and torch raise of a call that was never meant.
_SENSELESS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_log = logging.getLogger(__name__)

# A register, or a constant, of a step's arguments.
_Fetch = Callable[[list[Any]], Any]
# A step runs over the registers, with the pieces of the range that serves the call, use by use.
_Step = Callable[[list[Any], Sequence["RunnablePiece"]], None]


class RunnablePiece(Protocol):
    """A piece: takes its inputs as a list that it may empty, gives its outputs in order."""

    def __call__(self, inputs: list[Any]) -> Sequence[Any]: ...


class LoadedPiece:
    """A piece that is loaded now, or with `lazy` when it is first called; `inputs` is what it takes."""

    def __init__(self, load: Callable[[], RunnablePiece], inputs: Sequence[Any], *, lazy: bool) -> None:
        self.inputs = inputs
        self._load = load
        self._lock = threading.Lock()
        self._piece = None if lazy else load()

    @property
    def partitions(self) -> list[RunnablePiece]:
        """The list that the piece takes its partitions from, [] of one that Inductor did not partition."""
        found: list[RunnablePiece] = getattr(self.ready(), "partitions", [])
        return found

    def ready(self) -> RunnablePiece:
        """Returns the piece itself. Raises LoadRefused where it cannot be loaded."""
        if self._piece is None:
            with self._lock:
                self._piece = self._piece or self._load()
        return self._piece

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Runs the piece."""
        return (self._piece or self.ready())(inputs)


class CompiledPart:
    """One compiled part bound to a live module's parameters: call it in place of the module's forward."""

    def __init__(
        self,
        wiring: Mapping[str, Any],
        pieces: Sequence[RunnablePiece],
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
        # Equal pieces are compiled once, and run at several steps: each is a use of its own.
        self._uses = [int(step["piece"]) for step in wiring["steps"] if "piece" in step]
        use = iter(range(len(self._uses)))
        self._steps = [
            _piece_step(step, next(use)) if "piece" in step else _step(step) for step in wiring["steps"]
        ]
        self._ranges = [(int(start), int(end)) for start, end in wiring["ranges"]]
        distinct: dict[tuple[int, int], list[RunnablePiece]] = {found: [] for found in self._ranges}
        for spec, piece in zip(wiring["pieces"], pieces, strict=True):
            distinct[tuple(spec["range"])].append(piece)
        self._pieces = {found: [given[number] for number in self._uses] for found, given in distinct.items()}
        self._outputs = [_fetch(value) for value in wiring["outputs"]]
        self._structure = wiring["structure"]
        self._wiring = wiring
        # Token counts whose first call is over: what every step takes was looked at then.
        self._proved: set[int] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the part. Raises DoorError when the call is not one that it was compiled for."""
        values = self.door.ordered(args, kwargs)
        tokens = self.door.check(values)
        registers = self._fixed.copy()
        for register in self._tokens:
            registers[register] = tokens
        for register, index, member in self._from_call:
            registers[register] = values[index] if member is None else values[index][member]
        if tokens in self._proved:
            pieces = self._pieces[self.range_of(tokens)]
            for step in self._steps:
                step(registers, pieces)
        else:
            self._first(registers, tokens)
        outputs = [fetch(registers) for fetch in self._outputs]
        return rebuild(self._structure, outputs, dict(zip(self._names, values, strict=True)))

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The first and the last token count of what was compiled apart, exact sizes among them."""
        return tuple(self._ranges)

    def loaded(self) -> list[RunnablePiece]:
        """Returns every piece, those loaded that wait for their first call. Raises LoadRefused for one that
        cannot be.
        """
        pieces = [piece for found in self._pieces.values() for piece in found]
        return [piece.ready() if isinstance(piece, LoadedPiece) else piece for piece in pieces]

    def wrap_pieces(self, wrap: Callable[[RunnablePiece, str, list[str]], RunnablePiece]) -> None:
        """Puts what `wrap` makes of each use of a piece, of its name and its arguments' names, in its place.

        What is kept for one use must not serve another: its inputs lie elsewhere. Of a piece that Inductor
        partitioned, which is used once, its partitions: what lies between them cannot be captured. Pieces
        for exact sizes are loaded for it.
        """
        named = piece_arguments(self._wiring)
        for start, _ in tuple(self._pieces):
            self._ready(start)
        for (start, end), pieces in self._pieces.items():
            for use, piece in enumerate(pieces):
                name = f"piece {self._uses[use]} at cut {use} for ({start}, {end})"
                partitions = getattr(piece, "partitions", [])
                for index, partition in enumerate(partitions):
                    partitions[index] = wrap(partition, f"partition {index} of {name}", [])
                if not partitions:
                    pieces[use] = wrap(piece, name, named[use])

    def _first(self, registers: list[Any], tokens: int) -> None:
        """Runs the steps of the first call with a token count, every piece held to what it takes."""
        pieces = [
            _held(piece, number, tokens)
            for number, piece in zip(self._uses, self._ready(tokens), strict=True)
        ]
        for number, step in enumerate(self._steps):
            try:
                step(registers, pieces)
            except _SENSELESS as error:
                if self._proved or isinstance(error, (GraphkilnError, torch.OutOfMemoryError)):
                    raise
                # Nothing of this part ever ran: the steps may be to blame as well as what they call.
                text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                raise StepFailed(f"step {number}", "a call that returns", text) from error
        self._proved.add(tokens)

    def _ready(self, tokens: int) -> Sequence[RunnablePiece]:
        """Returns the pieces that serve a token count, loaded; those of a wider range where one cannot be."""
        found = self.range_of(tokens)
        try:
            for piece in self._pieces[found]:
                # Through the wrapper of a graph too, which must not capture a load.
                getattr(piece, "ready", lambda: None)()
        except GraphkilnError as error:
            wider = [
                bounds for bounds in self._ranges if bounds != found and bounds[0] <= tokens <= bounds[1]
            ]
            if not wider:
                raise
            _log.warning("pieces for %d tokens alone are left out: %s", tokens, error)
            self._ranges = [bounds for bounds in self._ranges if bounds != found]
            self._pieces.pop(found, None)
            return self._ready(tokens)
        return self._pieces[found]

    def range_of(self, tokens: int) -> tuple[int, int]:
        """Returns the range whose pieces serve a call: an exact size before any range.

        Raises DoorError, naming the ranges, when there is none.
        """
        if (tokens, tokens) in self._pieces:
            return tokens, tokens
        for start, end in self._ranges:
            if start <= tokens <= end:
                return start, end
        raise DoorError("token count", " ".join(f"({s}, {e})" for s, e in self._ranges), str(tokens))


def _held(piece: RunnablePiece, number: int, tokens: int) -> RunnablePiece:
    """A piece that says what it takes, itself or through the wrapper around it, held to that."""
    inputs = getattr(piece, "inputs", None)
    return piece if inputs is None else HeldPiece(piece, number, inputs, tokens)


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


def _piece_step(step: Mapping[str, Any], use: int) -> _Step:
    outs, free = [int(out) for out in step["outs"]], [int(register) for register in step.get("free", ())]
    fetches = [_fetch(value) for value in step["args"]]

    def run_piece(registers: list[Any], pieces: Sequence[RunnablePiece]) -> None:
        results = pieces[use]([fetch(registers) for fetch in fetches])
        for out, result in zip(outs, results, strict=True):
            registers[out] = result
        for register in free:
            registers[register] = None

    return run_piece


def _step(step: Mapping[str, Any]) -> _Step:
    outs, free = [int(out) for out in step["outs"]], [int(register) for register in step.get("free", ())]
    if "item" in step:
        source, index = _fetch(step["item"]), step["index"]

        def run_item(registers: list[Any], pieces: Sequence[RunnablePiece]) -> None:
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

    def run_op(registers: list[Any], pieces: Sequence[RunnablePiece]) -> None:
        registers[outs[0]] = op(
            *(fetch(registers) for fetch in fetches),
            **{name: fetch(registers) for name, fetch in named.items()},
        )
        for register in free:
            registers[register] = None

    return run_op
