"""The tables of observed behaviour, where they are at hand, and how a row becomes our own input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.core.config.facts import Facts
from graphkiln.core.config.splitting import ATTENTION_OPS, KV_CACHE_UPDATE_OPS

FOLDER = Path(__file__).parents[3] / "shared" / "reference" / "oracle"

# The tables were recorded on an H100: capability 9.0, one GPU.
HOST: dict[str, Any] = {
    "device": "cuda",
    "capability": 90,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
}


def rows(table: str) -> list[dict[str, Any]]:
    """Returns the rows of a table, none where it is not at hand."""
    path = FOLDER / f"{table}.json"
    return json.loads(path.read_text()) if path.is_file() else []


def needs(table: str) -> pytest.MarkDecorator:
    path = FOLDER / f"{table}.json"
    return pytest.mark.skipif(not path.is_file(), reason=f"the observed table {table} is not here")


def facts(**values: Any) -> Facts:
    """Returns the facts of the tables' host, with what a row says otherwise."""
    return Facts(**{**HOST, **{name: value for name, value in values.items() if value is not None}})


def splitting_ops(value: Any) -> Any:
    """Returns a table's splitting ops as ours: its two words are our lists, its names in our namespace."""
    if value == "attention":
        return list(ATTENTION_OPS)
    if value == "attention+kv_cache_update":
        return list(ATTENTION_OPS + KV_CACHE_UPDATE_OPS)
    return value if value is None else [name.replace("vllm::", "graphkiln::") for name in value]


def outcome(run: Callable[[], dict[str, Any]], categories: dict[str, str]) -> dict[str, Any]:
    """Returns what `run` returns, or `{"error": category}` by the words of the ValueError that it raised."""
    try:
        return {"output": run()}
    except ValueError as error:
        text = str(error)
        assert "\n" not in text
        found = [category for category, words in categories.items() if words in text]
        assert len(found) == 1, (text, found)
        return {"error": found[0]}


def compare(
    table: str, answer: Callable[[dict[str, Any]], dict[str, Any]], differences: dict[str, Any]
) -> None:
    """Asserts that every row is answered as observed, or as a difference says, and that each is used."""
    unused, wrong = set(differences), []
    for number, row in enumerate(rows(table)):
        given = row["input"]
        expected = {name: value for name, value in row.items() if name != "input"}
        for name, difference in differences.items():
            if difference.applies(given, expected):
                unused.discard(name)
                expected = difference.ours(given, expected)
        found = answer(given)
        if found != expected:
            wrong.append((number, given, expected, found))
    assert not wrong, f"{len(wrong)} rows, the first: {wrong[0]}"
    assert not unused, unused
