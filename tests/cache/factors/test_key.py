"""Factors are frozen when they are made, and lookup and key say what they are made of."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.key import FORMAT, Factors


def make(**changes: Any) -> Factors:
    values: dict[str, Any] = {
        "env": {"GRAPHKILN_CPP_FAST_MATH": False},
        "config": {"dtype": "bfloat16", "sizes": [1, 2]},
        "code": {"functions": {"m": {"f": "0" * 64}}},
        "compiler": {"torch": "2.13.0"},
    }
    return Factors(**(values | changes))


def test_key_and_lookup_are_digests_of_the_factor_hashes_and_the_format() -> None:
    factors = make()
    hashes = {name: digest(value) for name, value in factors.as_json().items()}
    assert factors.hashes == hashes
    assert factors.key == digest({"format": FORMAT, **hashes})
    assert factors.lookup == digest({"format": FORMAT, **{n: h for n, h in hashes.items() if n != "code"}})
    assert factors.short == factors.key[:10]


def test_a_golden_key_holds_format_1_still() -> None:
    """Entries on people's disks have such keys: a change here is a new FORMAT, never an edit of this test."""
    assert FORMAT == 1
    assert make().lookup == "ad30a667bdfd77a9a08dc9adeec5347672f2abdbcbe37ea1ac9b553560e9ca03"
    assert make().key == "fc41ae8be23401bdc5e0df8cbaf3d7d50883124f3b35a1b6431cf3ae758afd4c"


def test_an_edit_after_the_key_was_made_changes_nothing() -> None:
    config: dict[str, Any] = {"splitting_ops": ["a", "b"], "dtype": "float32"}
    factors = make(config=config)
    before = factors.key
    config["splitting_ops"].append("c")
    assert factors.as_json()["config"]["splitting_ops"] == ["a", "b"]
    assert make(config={"dtype": "float32", "splitting_ops": ("a", "b")}).key == before
    assert make(config=config).key != before


def test_factors_cannot_be_changed() -> None:
    factors = make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        factors.env = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        factors.config["dtype"] = "float16"  # type: ignore[index]
    factors.as_json()["config"]["dtype"] = "float16"
    assert factors.config["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", ["env", "config", "compiler"])
def test_lookup_follows_every_factor_but_code(name: str) -> None:
    assert make(**{name: {"x": 1}}).lookup != make().lookup
    assert make(**{name: {"x": 1}}).key != make().key
    assert make(code={"x": 1}).lookup == make().lookup
    assert make(code={"x": 1}).key != make().key


def test_values_moved_from_one_factor_to_another_give_another_key() -> None:
    assert make(env={"x": 1}, config={}).key != make(env={}, config={"x": 1}).key


def test_without_code_there_is_a_lookup_and_no_key() -> None:
    factors = make(code=None)
    assert factors.lookup == make().lookup
    assert set(factors.hashes) == {"env", "config", "compiler"}
    with pytest.raises(ValueError, match="only a lookup"):
        _ = factors.key


def test_a_value_without_canonical_form_names_factor_and_path() -> None:
    with pytest.raises(NotCanonical) as caught:
        make(compiler={"inductor": {"post_grad_custom_post_pass": print}})
    assert caught.value.where == "compiler.inductor.post_grad_custom_post_pass"


def test_equality_is_that_of_the_hashes() -> None:
    assert make() == make()
    assert hash(make()) == hash(make())
    assert make(config={"x": 1}) != make(config={"x": True})


def test_json_and_pickle_round_trips_keep_the_key() -> None:
    factors = make()
    assert Factors.from_json(factors.as_json()) == factors
    assert pickle.loads(pickle.dumps(factors)).key == factors.key


@pytest.mark.parametrize(
    "data", [{}, {"env": {}, "config": {}, "code": {}}, {"env": [], "config": {}, "code": {}, "compiler": {}}]
)
def test_other_shapes_are_not_factors(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="factor"):
        Factors.from_json(data)
