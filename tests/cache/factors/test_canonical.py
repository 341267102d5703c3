"""Canonical form: equal content gives one text, different content never does."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.factors.canonical import MAX_DEPTH, canonical_json, digest


class Level(enum.IntEnum):
    HIGH = 1


class Name(str):
    __slots__ = ()


class AddressInRepr:
    pass


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"name": 1}
    value["inner"] = [value]
    return value


def test_values_that_python_holds_equal_have_texts_of_their_own() -> None:
    values: list[Any] = [
        1,
        1.0,
        True,
        0,
        0.0,
        -0.0,
        False,
        None,
        "",
        "1",
        "true",
        [],
        {},
        [1],
        [[1]],
        {"1": 1},
    ]
    texts = [canonical_json(value) for value in values]
    assert len(set(texts)) == len(values)


def test_the_text_is_valid_json_of_the_same_value() -> None:
    value = {"b": [1, 2.5, None, True], "a": {"ü": "𝄞\n"}, "big": 2**70, "tiny": 5e-324}
    text = canonical_json(value)
    assert json.loads(text) == value
    assert text.isascii()


def test_order_identity_and_kind_of_container_do_not_matter() -> None:
    shared = [1, 2]
    twins = {"x": [1, 2], "y": [1, 2]}
    one = canonical_json({"y": shared, "x": shared})
    assert one == canonical_json(twins)
    assert one == canonical_json(OrderedDict(reversed(twins.items())))
    assert one == canonical_json(MappingProxyType({"x": (1, 2), "y": (1, 2)}))


def test_every_process_gives_the_same_digest() -> None:
    code = (
        "from graphkiln.cache.factors.canonical import digest;"
        "print(digest({name: sorted({name, 'z'}) for name in {'a', 'b', 'c', 'd'}}))"
    )
    digests = set()
    for seed in ("0", "1", "4242"):
        child = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(child.stdout.strip())
    assert digests == {digest({name: sorted({name, "z"}) for name in "abcd"})}


def test_a_golden_digest_holds_the_form_still() -> None:
    value = {"a": [1, 1.0, True, None, "é"], "b": {"c": -0.0}}
    assert canonical_json(value) == b'{"a":[1,1.0,true,null,"\\u00e9"],"b":{"c":-0.0}}'


@pytest.mark.parametrize(
    ("value", "where", "reason"),
    [
        ({"passes": [1, len]}, "config.passes[1]", "builtin_function_or_method"),
        ({"passes": {"fuse": lambda: 0}}, "config.passes.fuse", "function"),
        ({"names": {"a", "b"}}, "config.names", "set"),
        ({"raw": b"x"}, "config.raw", "bytes"),
        ({"x": [float("nan")]}, "config.x[0]", "not a finite number"),
        ({"x": float("-inf")}, "config.x", "not a finite number"),
        ({"level": Level.HIGH}, "config.level", "Level"),
        ({"name": Name("n")}, "config.name", "Name"),
        ({"o": AddressInRepr()}, "config.o", "AddressInRepr"),
        ({1: "x"}, "config", "the key 1 is of type int"),
        ({"x": "\ud83d\ude00"}, "config.x", "lone surrogate"),
        ({"\udcff": 1}, "config", "lone surrogate"),
        ({"big": 1 << 10_000}, "config.big", "too large"),
        (nested(MAX_DEPTH + 1), "config" + "[0]" * MAX_DEPTH, f"deeper than {MAX_DEPTH}"),
        (cyclic(), "config.inner[0]", "contains itself"),
    ],
)
def test_what_has_no_canonical_form_is_refused_by_name(value: Any, where: str, reason: str) -> None:
    with pytest.raises(NotCanonical) as caught:
        canonical_json(value, "config")
    assert caught.value.where == where
    assert reason in caught.value.reason
    assert str(caught.value).startswith(f"not cacheable: {where}, because ")


def test_the_deepest_allowed_value_is_taken_and_read_back() -> None:
    assert json.loads(canonical_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
