"""Differences between two values name every leaf once."""

from __future__ import annotations

from graphkiln.cache.factors.difference import Difference, differences


def test_each_leaf_is_named_by_its_path_and_kind() -> None:
    then = {"dtype": "bfloat16", "cpp": {"simd": 256, "fast": True}, "ops": ["a", "b"], "gone": 1}
    now = {"dtype": "float16", "cpp": {"simd": 256, "fast": 1}, "ops": ["a", "c"], "new": None}
    assert differences("config", then, now) == [
        Difference("config", "cpp.fast", True, 1),
        Difference("config", "dtype", "bfloat16", "float16"),
        Difference("config", "gone", 1, None, kind="removed"),
        Difference("config", "new", None, None, kind="added"),
        Difference("config", "ops[1]", "b", "c"),
    ]


def test_lists_of_other_lengths_are_one_difference() -> None:
    assert differences("code", {"x": [1]}, {"x": [1, 2]}) == [Difference("code", "x", [1], [1, 2])]


def test_tuples_and_lists_of_equal_items_are_equal() -> None:
    assert differences("code", {"x": (1, [2])}, {"x": [1, (2,)]}) == []
