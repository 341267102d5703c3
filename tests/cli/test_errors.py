"""Every typed error has a row, and what nobody expected is said to be so."""

from __future__ import annotations

import errno
import inspect
from pathlib import Path

import pytest

import graphkiln.cache.errors
import graphkiln.core.errors
from graphkiln.cache.errors import BadVariable, DiskFull, EntryNotFound, LockTimeout, RootUnusable
from graphkiln.cli.errors import TABLE, UsageProblem, problem_of
from graphkiln.core.errors import CheckFailed, ModelError, NoCompiler, ShapeLimited, WeightsDamaged

ABSTRACT = {"CacheError", "CoreError", "GraphkilnError"}


def test_every_typed_error_has_a_row_of_its_own_or_of_its_kind() -> None:
    for module in (graphkiln.cache.errors, graphkiln.core.errors):
        for name, error in inspect.getmembers(module, inspect.isclass):
            if issubclass(error, graphkiln.cache.errors.GraphkilnError) and name not in ABSTRACT:
                rows = [base.__name__ for base in error.__mro__ if base.__name__ in TABLE]
                assert rows[0] != "GraphkilnError", f"{name} has no row"


def test_every_row_is_for_an_error_that_exists() -> None:
    known = {*dir(graphkiln.cache.errors), *dir(graphkiln.core.errors), "UsageProblem"}
    assert set(TABLE) <= known


@pytest.mark.parametrize(
    ("error", "status", "sentence", "hint"),
    [
        (
            RootUnusable(Path("d"), "not writable", "choose another"),
            4,
            "the cache at d cannot be used: not writable",
            "choose another",
        ),
        (
            DiskFull(Path("d")),
            4,
            "the disk is full at d",
            "free some space, or choose another place with --cache-root",
        ),
        (
            LockTimeout(Path("l"), "process 7 on h", 3.0),
            4,
            "waited 3.0 s for the lock l, held by process 7 on h",
            "wait for process 7 on h, or raise GRAPHKILN_LOCK_TIMEOUT (seconds)",
        ),
        (EntryNotFound("ab"), 2, "no entry answers to 'ab'", "graphkiln cache ls lists what is there"),
        (
            BadVariable("X", "maybe", "0 or 1"),
            2,
            "X='maybe' is not understood: it takes 0 or 1",
            "unset X, or set it to 0 or 1",
        ),
        (ModelError("m", "no such folder", "give one"), 2, "m: no such folder", "give one"),
        (WeightsDamaged("m", "cut short", "fetch it again"), 2, "m: cut short", "fetch it again"),
        (NoCompiler("c++", "was not found", "install g++"), 4, "c++: was not found", "install g++"),
        (
            ShapeLimited(9, "T <= 8", "model.py:3"),
            1,
            "shapes: the traced code holds only where T <= 8 (model.py:3): 9 tokens fail first",
            "make the code independent of the token count, or limit the token count",
        ),
        (
            CheckFailed(7, 0.5, 0.001),
            1,
            "check failed at 7 tokens: compiled and eager differ by 0.5, the tolerance is 0.001",
            "nothing was published; --no-check publishes without comparing",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "f"),
            4,
            "f: No space left on device",
            "free some space",
        ),
        (UsageProblem("no", "yes"), 2, "no", "yes"),
        (
            RuntimeError("first line\n  second."),
            3,
            "internal error: RuntimeError: first line second",
            "run it again with -vv for the traceback",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_a_sentence_a_hint_and_a_status(
    error: Exception, status: int, sentence: str, hint: str
) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.sentence, problem.hint) == (status, sentence, hint)


def test_a_place_that_a_variable_names_is_told_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/gone/inductor")
    for place in ("/gone", "/gone/inductor"):
        problem = problem_of(FileNotFoundError(errno.ENOENT, "No such file or directory", place))
        assert problem.sentence == f"{place}: No such file or directory"
        assert problem.hint == (
            "TORCHINDUCTOR_CACHE_DIR leads there: name a folder that can be written, or unset it"
        )
    assert problem_of(FileNotFoundError(errno.ENOENT, "No such file or directory", "/gone/else")).hint is None
    assert problem_of(OSError(errno.EIO, "Input/output error")).hint is None
