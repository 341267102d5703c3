"""The errors of `graphkiln.core`.

    GraphkilnError                     (graphkiln.cache.errors)
    +- CoreError
       +- ModelError                   the model reference cannot be used
       |  +- UnsupportedModel          an architecture, or something it passes, that is not carried
       |  +- WeightsDamaged            a weight file is cut short or is not what its header says
       +- CompileError                 the model cannot be compiled as asked
       |  +- ShapeLimited              a fact about shapes forbids a token count that was promised
       |  +- NoCompiler                a C++ compiler is needed and was not found
       |  +- NoDevice                  a device is not here, or cannot be compiled for from here
       |  +- BadTarget                 a target that does not exist
       |  +- BadChoices                a file of choices that is none, or not for what is compiled
       |  +- NothingToTune             what was loaded leaves nothing to choose between
       |  +- NotReplaced               an entry stays that another build was to take the place of
       +- Bypass                       the start cannot have a key: counted apart from a miss
       +- LoadRefused                  an entry is there and is not used, by name
       |  +- AotRefused                an AOT file is there and is not used, and that was demanded
       |  +- PieceRefused              a piece whose bytes are right cannot be loaded
       +- StepFailed                   compiled code was handed what it was not compiled for
       +- DoorError                    a call brought what the compiled code was not promised
       +- OutOfRanges                  a call's token count lies in no compiled range
       +- CheckFailed                  the compiled pieces and eager disagree

Each keeps its facts as attributes and survives pickling, because errors cross process boundaries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphkiln.cache.errors import GraphkilnError


class CoreError(GraphkilnError):
    """The root of the errors that `core` raises."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._facts = args

    def __reduce__(self) -> tuple[type[CoreError], tuple[Any, ...]]:
        return type(self), self._facts


class ModelError(CoreError):
    """A model reference that cannot be used: `ref`, `reason`, `remedy`."""

    def __init__(self, ref: str, reason: str, remedy: str) -> None:
        super().__init__(ref, reason, remedy)
        self.ref, self.reason, self.remedy = ref, reason, remedy

    def __str__(self) -> str:
        return f"{self.ref}: {self.reason}"


class UnsupportedModel(ModelError):
    """An architecture, or an argument it passes to attention, that is not carried."""


class WeightsDamaged(ModelError):
    """A weight file is cut short, or is not what its header says."""


class CompileError(CoreError):
    """The model cannot be compiled as asked: `what`, `reason`, `remedy`."""

    def __init__(self, what: str, reason: str, remedy: str) -> None:
        super().__init__(what, reason, remedy)
        self.what, self.reason, self.remedy = what, reason, remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


class ShapeLimited(CompileError):
    """A fact about shapes forbids a token count that was promised.

    `num_tokens` is the first token count that fails, `fact` the condition that the traced code
    took for granted, `line` the source line that asked for it ("" when torch recorded none).
    """

    def __init__(self, num_tokens: int, fact: str, line: str) -> None:
        CoreError.__init__(self, num_tokens, fact, line)
        self.num_tokens, self.fact, self.line = num_tokens, fact, line
        where = f" ({line})" if line else ""
        self.what = "shapes"
        self.reason = f"the traced code holds only where {fact}{where}: {num_tokens} tokens fail first"
        self.remedy = "make the code independent of the token count, or limit the token count"


class NoCompiler(CompileError):
    """A C++ compiler is needed and was not found."""


class NoDevice(CompileError):
    """A device is needed that is not here, or this installation cannot compile for one that is not here."""


class BadTarget(CompileError):
    """A target that does not exist, or that nothing can be compiled for."""


class BadChoices(CompileError):
    """A file of frozen choices that is none, or that was made for something else."""


class NothingToTune(CompileError):
    """What was loaded leaves no configurations to choose between: it is not compiled, or frozen already."""


class NotReplaced(CompileError):
    """An entry stays that another build of its key, which was asked for, was to take the place of."""


class Bypass(CoreError):
    """The start cannot have a key: `factor` and `reason` name what has no canonical form."""

    def __init__(self, factor: str, reason: str) -> None:
        super().__init__(factor, reason)
        self.factor, self.reason = factor, reason

    def __str__(self) -> str:
        return f"not cacheable: {self.factor}, because {self.reason}"


class LoadRefused(CoreError):
    """An entry is there and is not used: `entry`, `reason`."""

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(entry, reason)
        self.entry, self.reason = entry, reason

    def __str__(self) -> str:
        return f"entry {self.entry} is not used: {self.reason}"


class PieceRefused(LoadRefused):
    """A piece whose bytes are right cannot be loaded: `entry`, `reason`, and the `artifact` that holds it."""

    def __init__(self, entry: str, reason: str, artifact: str) -> None:
        CoreError.__init__(self, entry, reason, artifact)
        self.entry, self.reason, self.artifact = entry, reason, artifact


class AotRefused(LoadRefused):
    """No AOT file could be used and one was demanded: `entry`, `reason`, `remedy`."""

    def __init__(self, entry: str, reason: str, remedy: str) -> None:
        CoreError.__init__(self, entry, reason, remedy)
        self.entry, self.reason, self.remedy = entry, reason, remedy

    def __str__(self) -> str:
        return f"AOT file {self.entry} is not used: {self.reason}" if self.entry else self.reason


class StepFailed(CoreError):
    """A step of compiled code was handed what it was not compiled for: `where`, `promised`, `came`."""

    # The caller's arguments went through the door: what is wrong lies in what was loaded.
    blames_entry = True

    def __init__(self, where: str, promised: str, came: str) -> None:
        super().__init__(where, promised, came)
        self.where, self.promised, self.came = where, promised, came

    def __str__(self) -> str:
        return f"{self.where}: compiled for {self.promised}, handed {self.came}"


class DoorError(CoreError):
    """A call brought what the compiled code was not promised: `argument`, `promised`, `came`."""

    def __init__(self, argument: str, promised: str, came: str) -> None:
        super().__init__(argument, promised, came)
        self.argument, self.promised, self.came = argument, promised, came

    def __str__(self) -> str:
        return f"{self.argument}: compiled for {self.promised}, called with {self.came}"


class OutOfRanges(CoreError):
    """A call of `tokens` tokens lies in none of the compiled `ranges`, which are told as a text."""

    def __init__(self, tokens: int, ranges: str) -> None:
        super().__init__(tokens, ranges)
        self.tokens, self.ranges = tokens, ranges

    def __str__(self) -> str:
        return f"nothing was compiled for {self.tokens} tokens: there is {self.ranges}"


class CheckFailed(CoreError):
    """The compiled pieces and eager disagree at `num_tokens`: `error` is over `tolerance`."""

    def __init__(self, num_tokens: int, error: float, tolerance: float) -> None:
        super().__init__(num_tokens, error, tolerance)
        self.num_tokens, self.error, self.tolerance = num_tokens, error, tolerance

    def __str__(self) -> str:
        return (
            f"check failed at {self.num_tokens} tokens: compiled and eager differ by "
            f"{self.error:.3g}, the tolerance is {self.tolerance:.3g}"
        )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what it came from, the errors that torch keeps inside its own included."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__ or getattr(error, "inner_exception", None)
