"""The remedy for a difference is what brings back the first value, and can be typed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from graphkiln.cache.factors.difference import Difference, differences
from graphkiln.cache.factors.remedies import with_remedy
from graphkiln.cli.commands.asked import options


def remedy(factor: str, then: Any, now: Any) -> Difference:
    (found,) = differences(factor, then, now)
    return with_remedy(found)


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (True, False, "set GRAPHKILN_CPP_FAST_MATH=1"),
        (False, True, "unset GRAPHKILN_CPP_FAST_MATH"),
    ],
)
def test_a_variable_is_set_or_unset(then: bool, now: bool, expected: str) -> None:
    name = "GRAPHKILN_CPP_FAST_MATH"
    assert remedy("env", {name: then}, {name: now}).remedy == expected


def test_a_variable_of_torch_s_that_was_not_set_is_unset() -> None:
    then: dict[str, Any] = {"inductor": {"environment": {}}}
    now = {"inductor": {"environment": {"TORCHINDUCTOR_X": "a b"}}}
    assert remedy("compiler", then, now).remedy == "unset TORCHINDUCTOR_X"
    assert remedy("compiler", now, then).remedy == "set TORCHINDUCTOR_X='a b'"


def test_an_option_that_was_not_given_is_left_out() -> None:
    then: dict[str, Any] = {"compilation": {"inductor_compile_config": {}}}
    now = {"compilation": {"inductor_compile_config": {"cpp.x": "1"}}}
    assert remedy("config", then, now).remedy == "leave out -cc.inductor_compile_config.cpp.x"
    # A text that reads as JSON is quoted as JSON, or it would come back as a number.
    assert remedy("config", now, then).remedy == """-cc.inductor_compile_config.cpp.x='"1"'"""


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.13.0", "pip install torch==2.13.0"),
        ("2.13.0+cu130", "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130"),
        ("2.14.0a0+git1234", "pip install torch==2.14.0a0"),
    ],
)
def test_a_torch_of_another_build_comes_from_its_index(version: str, expected: str) -> None:
    assert remedy("compiler", {"torch": version}, {"torch": "2.0"}).remedy == expected


def test_every_option_that_is_named_can_be_typed() -> None:
    known = inspect.signature(options).parameters
    for name in ("dtype", "max_num_batched_tokens", "max_model_len", "max_num_seqs", "block_size"):
        word = remedy("config", {name: 1}, {name: 2}).remedy.split()[0]
        assert word.removeprefix("--").replace("-", "_") in known


def test_a_remedy_that_is_there_already_stays() -> None:
    given = Difference("config", "dtype", "float32", "bfloat16", remedy="do this")
    assert with_remedy(given) == given
