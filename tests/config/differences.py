"""Every place where we answer otherwise than was observed of vLLM, on purpose, and why.

`applies(input, expected)` says which rows it is about; `ours(input, expected)` gives our answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

ATTENTION = "vllm::unified_attention_with_output"


@dataclass(frozen=True)
class Difference:
    """One deliberate difference from a table."""

    reason: str
    applies: Callable[[Row, Row], bool]
    ours: Callable[[Row, Row], Row]


def _sizes_below_one(given: Row, expected: Row) -> bool:
    return any(type(size) is int and size < 1 for size in given.get("cudagraph_capture_sizes") or ())


CAPTURE_SIZES = {
    "sizes below one": Difference(
        "a graph for no tokens cannot be captured: a size of 0 or below is a mistake, told as one",
        _sizes_below_one,
        lambda given, expected: {"error": "size_below_one"},
    ),
}


def _with(expected: Row, **changed: Any) -> Row:
    return {"output": {**expected["output"], **changed}}


def _once(values: list[Any]) -> list[Any]:
    return sorted(set(values))


def _without_unreached(given: Row, expected: Row) -> Row:
    most, found = given["max_num_batched_tokens"], expected["output"]
    last = found["ranges"][-1]
    lookup = [
        chosen if tokens <= most else last if last[0] <= tokens <= last[1] else None
        for tokens, chosen in zip(given["lookup"], found["lookup"], strict=True)
    ]
    sizes = {
        name: [size for size in found[name] if size <= most] for name in ("compile_sizes", "single_sizes")
    }
    return _with(expected, lookup=lookup, **sizes)


RANGES = {
    "compile sizes below one": Difference(
        "a piece cannot be compiled for no tokens: a size of 0 or below is a mistake, told as one",
        lambda given, expected: any(type(size) is int and size < 1 for size in given["compile_sizes"] or ()),
        lambda given, expected: {"error": "size_below_one"},
    ),
    "compile sizes that no step reaches": Difference(
        "a size above max_num_batched_tokens would be compiled for calls that never come: it is left out",
        lambda given, expected: (
            "output" in expected
            and any(size > given["max_num_batched_tokens"] for size in expected["output"]["compile_sizes"])
        ),
        _without_unreached,
    ),
    "an endpoint written twice": Difference(
        "the ranges are the same, so that the key is to be the same: an endpoint stands once",
        lambda given, expected: (
            "output" in expected and expected["output"]["endpoints"] != _once(expected["output"]["endpoints"])
        ),
        lambda given, expected: _with(expected, endpoints=_once(expected["output"]["endpoints"])),
    ),
    "a size that is written beside the word for it": Difference(
        "it is compiled once, so that it stands once in the list too",
        lambda given, expected: (
            "output" in expected
            and expected["output"]["compile_sizes"] != _once(expected["output"]["compile_sizes"])
        ),
        lambda given, expected: _with(expected, compile_sizes=_once(expected["output"]["compile_sizes"])),
    ),
}


def _once_each(given: Row, expected: Row) -> Row:
    return _with(expected, custom_ops=list(dict.fromkeys(expected["output"]["custom_ops"])))


LEVELS = {
    "an op named twice": Difference(
        "+quant_fp8 is added once for block FP8 weights; a second one says nothing more",
        lambda given, expected: (
            "output" in expected
            and len(set(expected["output"]["custom_ops"])) < len(expected["output"]["custom_ops"])
        ),
        _once_each,
    ),
    "a cut at the one attention op": Difference(
        "one attention op in the list cuts at attention, and attention fusion cannot match then; vLLM sees "
        "the contradiction only where its whole list of attention ops is given",
        lambda given, expected: (
            given["user"].get("splitting_ops") == [ATTENTION]
            and given["user"].get("pass_config", {}).get("fuse_attn_quant") is True
        ),
        lambda given, expected: {"error": "attention_split_with_attention_fusion"},
    ),
    "a backend that cannot take pieces, at a level that compiles": Difference(
        "VLLM_COMPILE takes inductor or eager, whether the user names the mode or the level does; vLLM looks "
        "at the backend only where the mode is named",
        lambda given, expected: (
            given["user"].get("backend") not in (None, "", "inductor", "eager")
            and expected.get("output", {}).get("mode") == "VLLM_COMPILE"
        ),
        lambda given, expected: {"error": "bad_backend"},
    ),
}


NORMALISE = {
    "two keys with one text": Difference(
        "1 and '1' are two keys, and one of them would be mistaken for the other: the mapping has no form",
        lambda given, expected: (
            given["value"] in ("{1: 'x', '1': 'y'}", "{1: 2, '1': 'y'}", "{1: None, '1': None}")
        ),
        lambda given, expected: {"error": "two_keys"},
    ),
    "an error of the value's own method": Difference(
        "it says that there is no canonical form, so that the start is a bypass with a name and no crash",
        lambda given, expected: str(expected.get("error")).startswith("own_"),
        lambda given, expected: {"error": "own_method"},
    ),
}

# env.json says which variables change vLLM's key. Ours holds GRAPHKILN_* variables only: torch's and
# Triton's act through the compiler factor, and vLLM's own change nothing here.
ENV = "vLLM's variables are no factor of ours, whether or not vLLM hashes them"
