"""Every error keeps its facts through pickling and says them in one line."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import pytest

from graphkiln.cache import errors

ALL = [
    errors.NotCanonical("config.x", "a set"),
    errors.BadVariable("GRAPHKILN_X", "y", "0 or 1"),
    errors.SourceUnreadable("m.py", "gone"),
    errors.RootUnusable(Path("/c"), "read-only", "elsewhere"),
    errors.DiskFull(Path("/c"), 7),
    errors.LockTimeout(Path("/c/l"), "pid 1 on h", 2.0),
    errors.KeyPrefixCollision("a" * 10, "a" * 64, "a" * 63 + "b"),
    errors.EntryDamaged("a" * 10, "entry.json", "digest", "more"),
    errors.EntryNotFound("ref"),
    errors.NoIdGiven("vllm:/c#", "graphkiln cache ls --layout vllm:/c"),
    errors.BadFilter("siez>1", "no name 'siez'", ("size",)),
    errors.RestoreRefused("0123456789-20260101T000000Z", "it is still damaged"),
    errors.AmbiguousEntry("a", ("a" * 64, "ab" * 32)),
    errors.UnknownLayout("/c", "vllm", "it holds nothing"),
    errors.EnvironmentUnreadable("process 1", "permission denied"),
    errors.FactorsChanged("a" * 64, "b" * 64),
]


def test_every_error_of_the_package_is_tried_here() -> None:
    classes = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.CacheError)
    }
    assert {type(error) for error in ALL} == classes - {errors.CacheError}


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling_and_are_one_line(error: errors.CacheError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
    assert "\n" not in str(error)
    assert not str(error).endswith(".")


def test_many_matches_are_counted() -> None:
    text = str(errors.AmbiguousEntry("a", tuple(f"{number:010x}" for number in range(30))))
    assert text.endswith("0000000007 and 22 more")
