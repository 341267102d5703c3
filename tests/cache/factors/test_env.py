"""The environment enters the key by a list, and unknown names are reported."""

from __future__ import annotations

import pytest

from graphkiln.cache.errors import BadVariable
from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.cache.factors.env import VARIABLES, env_factor, read, unknown_variables


def test_only_registered_variables_that_change_code_are_in_the_factor() -> None:
    noise = {
        "GRAPHKILN_CACHE_ROOT": "/x",
        "GRAPHKILN_LOG_LEVEL": "debug",
        "GRAPHKILN_LOCK_TIMEOUT": "3",
        "GRAPHKILN_HOST_LABEL": "pod-7",
        "GRAPHKILN_NO_SUCH": "1",
        "POD_IP": "10.0.0.7",
        "RANK": "3",
    }
    assert env_factor(noise) == env_factor({}) == {"GRAPHKILN_CPP_FAST_MATH": False}
    assert env_factor({"GRAPHKILN_CPP_FAST_MATH": "1"}) == {"GRAPHKILN_CPP_FAST_MATH": True}


def test_unset_empty_and_the_default_written_out_are_one_value() -> None:
    one = {canonical_json(env_factor(environ)) for environ in ({}, {"GRAPHKILN_CPP_FAST_MATH": ""})}
    assert one == {canonical_json(env_factor({"GRAPHKILN_CPP_FAST_MATH": "0"}))}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("GRAPHKILN_LOCK_TIMEOUT", "", 1800.0),
        ("GRAPHKILN_LOCK_TIMEOUT", "0.5", 0.5),
        ("GRAPHKILN_LOG_LEVEL", "debug", "DEBUG"),
        ("GRAPHKILN_DISABLE_COMPILE_CACHE", "1", True),
        ("GRAPHKILN_CACHE_ROOT", "", None),
    ],
)
def test_values_are_parsed(name: str, text: str, value: object) -> None:
    assert read(name, {name: text}) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("GRAPHKILN_CPP_FAST_MATH", "yes"),
        ("GRAPHKILN_LOCK_TIMEOUT", "-1"),
        ("GRAPHKILN_LOCK_TIMEOUT", "nan"),
        ("GRAPHKILN_LOCK_TIMEOUT", "soon"),
        ("GRAPHKILN_LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_value_says_what_is_taken(name: str, text: str) -> None:
    with pytest.raises(BadVariable) as caught:
        read(name, {name: text})
    assert (caught.value.name, caught.value.value) == (name, text)
    assert caught.value.accepted in str(caught.value)


def test_unknown_names_are_reported_with_the_nearest_known_one() -> None:
    environ = {
        "GRAPHKILN_CACHE_ROOTS": "/x",
        "GRAPHKILN_QQQQQQQQQQQQQ": "1",
        "PATH": "/bin",
        **dict.fromkeys(VARIABLES, ""),
    }
    assert unknown_variables(environ) == [
        ("GRAPHKILN_CACHE_ROOTS", "GRAPHKILN_CACHE_ROOT"),
        ("GRAPHKILN_QQQQQQQQQQQQQ", None),
    ]
