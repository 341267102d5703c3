"""The one table that turns an error into a sentence, a hint and an exit status.

The sentence is the error's own text: the typed errors of `cache` and `core` say what and where. What is
added here is what to do, and the exit status. Rows are found by class name along the error's bases, so
that a `cache` command need not import `core` to know its errors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphkiln.cli.show.terminal import printable

YES = 0
NO = 1
BAD_INPUT = 2
UNKNOWN = 3
NOT_HERE = 4
INTERRUPTED = 130
# Variables that name folders which are made without a word, so that an error says the place alone.
_PLACES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class UsageProblem(Exception):
    """Something that was typed cannot be used: `sentence`, and `hint` where there is one."""

    def __init__(self, sentence: str, hint: str | None = None) -> None:
        super().__init__(sentence, hint)
        self.sentence, self.hint = sentence, hint

    def __str__(self) -> str:
        return self.sentence


class EngineProblem(Exception):
    """Another engine is not here (status 4), or did not start (status 1): `sentence`, `hint`, `status`."""

    def __init__(self, sentence: str, hint: str, status: int = NOT_HERE) -> None:
        super().__init__(sentence, hint, status)
        self.sentence, self.hint, self.status = sentence, hint, status

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Problem:
    """What a person is told: a `sentence`, a `hint` or None, the exit `status`; `kind` names the error."""

    kind: str
    sentence: str
    hint: str | None
    status: int


def own_remedy(error: Any) -> str | None:
    return getattr(error, "remedy", None) or None


def says(text: str) -> Callable[[Any], str | None]:
    return lambda error: text.format_map(Facts(error))


class Facts(dict[str, str]):
    """The attributes of an error, as the fields of a hint."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self._error = error

    def __missing__(self, name: str) -> str:
        return str(getattr(self._error, name))


TABLE: dict[str, tuple[int, Callable[[Any], str | None]]] = {
    "UsageProblem": (BAD_INPUT, lambda error: error.hint),
    # cache
    "NotCanonical": (NO, own_remedy),
    "BadVariable": (BAD_INPUT, says("unset {name}, or set it to {accepted}")),
    "SourceUnreadable": (NO, own_remedy),
    "RootUnusable": (NOT_HERE, own_remedy),
    "DiskFull": (NOT_HERE, says("free some space, or choose another place with --cache-root")),
    "LockTimeout": (NOT_HERE, says("wait for {holder}, or raise GRAPHKILN_LOCK_TIMEOUT (seconds)")),
    "KeyPrefixCollision": (NO, says("move the entry {short} away, or use another --cache-root")),
    "EntryDamaged": (NO, says("the next start compiles it again and sets this one aside")),
    "EntryNotFound": (BAD_INPUT, says("{listing} lists what is there")),
    "NoIdGiven": (BAD_INPUT, says("{listing} lists the ids; an unset variable gives none")),
    "AmbiguousEntry": (BAD_INPUT, says("type more digits")),
    "BadFilter": (BAD_INPUT, own_remedy),
    "EnvironmentUnreadable": (
        BAD_INPUT,
        says("--env-file takes the output of env, an env file or a pod spec; --env-from a process"),
    ),
    "UnknownLayout": (BAD_INPUT, says("name the folder: {layout}:DIR, or --layout {layout}:DIR")),
    "RestoreRefused": (NO, own_remedy),
    "FactorsChanged": (NO, says("a source file or a variable changed during the compile; run it again")),
    # core
    "ModelError": (BAD_INPUT, own_remedy),
    "CompileError": (NO, own_remedy),
    "NoCompiler": (NOT_HERE, own_remedy),
    "NoDevice": (NOT_HERE, own_remedy),
    "BadTarget": (BAD_INPUT, own_remedy),
    "BadChoices": (BAD_INPUT, own_remedy),
    "Bypass": (NO, own_remedy),
    "LoadRefused": (NO, own_remedy),
    "StepFailed": (NO, says("the next start sets what was loaded aside and compiles again")),
    "DoorError": (NO, own_remedy),
    "OutOfRanges": (NO, says("raise max_num_batched_tokens, or bring fewer tokens in one call")),
    "CheckFailed": (NO, says("nothing was published; --no-check publishes without comparing")),
    "GraphkilnError": (NO, own_remedy),
}


def problem_of(error: BaseException) -> Problem:
    """Returns what to tell about `error`; one that nobody expected is named as such."""
    kind = type(error).__name__
    if isinstance(error, EngineProblem):
        return Problem(kind, one_line(error.sentence), error.hint, error.status)
    for base in type(error).__mro__:
        if base.__name__ in TABLE:
            status, hint = TABLE[base.__name__]
            return Problem(kind, one_line(str(error)), hint(error), status)
    if isinstance(error, OSError):
        return os_problem(kind, error)
    if isinstance(error, MemoryError):
        return Problem(kind, "there is not enough memory", None, NOT_HERE)
    if isinstance(error, ImportError):
        return Problem(
            kind, f"a package cannot be imported: {one_line(str(error))}", "reinstall it", NOT_HERE
        )
    sentence = f"internal error: {kind}: {one_line(str(error))}"
    return Problem(kind, sentence, "run it again with -vv for the traceback", UNKNOWN)


def os_problem(kind: str, error: OSError) -> Problem:
    where = f"{error.filename}: " if error.filename else ""
    hint = "free some space" if error.errno == errno.ENOSPC else _leads_there(error.filename)
    return Problem(kind, f"{where}{error.strerror or one_line(str(error))}", hint, NOT_HERE)


def _leads_there(file: Any) -> str | None:
    """Returns what to do about a place that a variable names: torch makes its folder when it is imported."""
    places = {name: os.environ.get(name, "") for name in _PLACES}
    names = [name for name, place in places.items() if f"{place}/".startswith(f"{file}/")]
    return f"{names[0]} leads there: name a folder that can be written, or unset it" if names else None


def one_line(text: str) -> str:
    """Returns the text on one line, without the full stop that ends a paragraph."""
    return printable(" ".join(text.split())).removesuffix(".")
