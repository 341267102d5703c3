"""Canonical forms of values: the observed table, and what is ours."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import hashlib
import importlib.util
import json
import math
import pathlib
import re
import subprocess
import sys
import types
import uuid
from typing import Any

import pytest
import torch

from graphkiln.cache.errors import NotCanonical
from graphkiln.core.config.normalise import normalise
from tests.config.differences import NORMALISE
from tests.config.oracle import FOLDER, compare, needs

CATEGORIES = {
    "callable": "a callable has no canonical form",
    "unsupported_type": "has no canonical form",
    "two_keys": "two of its keys",
    "recursion": "contains itself",
    "own_method": "to_json_string() raised",
}


def toys() -> types.ModuleType:
    """Returns the module of small types that the table names."""
    spec = importlib.util.spec_from_file_location("toys", FOLDER / "toys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["toys"] = module
    spec.loader.exec_module(module)
    return module


def in_table_form(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"tuple": [in_table_form(inner) for inner in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


@needs("normalise")
def test_forms_are_those_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    names = {
        "np": numpy, "torch": torch, "toys": toys(), "collections": collections, "types": types, "uuid": uuid,
        "pathlib": pathlib, "decimal": decimal, "fractions": fractions, "datetime": datetime, "re": re,
    }  # fmt: skip

    def answer(given: dict[str, Any]) -> dict[str, Any]:
        value = eval(given["value"], names)
        try:
            form = normalise(value)
        except NotCanonical as error:
            found = [name for name, words in CATEGORIES.items() if words in error.reason]
            return {"error": found[0]}
        text = json.dumps({"x": form}, sort_keys=True)
        return {"output": {"value": in_table_form(form), "sha256": hashlib.sha256(text.encode()).hexdigest()}}

    compare("normalise", answer, NORMALISE)


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(NotCanonical) as caught:
        normalise({"a": [1, {"b": len}]}, "options")
    assert caught.value.where == "options.a[1].b"


def test_a_subclass_of_a_scalar_becomes_the_scalar() -> None:
    class Loud(str):
        def __str__(self) -> str:
            return "loud"

    assert type(normalise(Loud("soft"))) is str
    assert normalise(Loud("soft")) == "soft"


def test_a_number_keeps_all_its_digits() -> None:
    class Big(int):
        pass

    assert normalise(Big(10**5000)) == 10**5000


def test_a_shared_value_is_no_cycle() -> None:
    shared = [1]
    assert normalise([shared, shared]) == ((1,), (1,))


def test_nested_sets_have_one_form_in_every_process() -> None:
    code = (
        "from graphkiln.core.config.normalise import normalise;"
        "print(normalise({frozenset({'a', 'b', 'c'}), frozenset({'d', 'e'})}))"
    )
    forms = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(forms) == 1
