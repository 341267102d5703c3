"""Compile ranges: the observed table, the order of compiling, and the texts that are ours."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.ranges import CompileRange, CompileRanges
from graphkiln.core.config.resolve import Resolution, resolve
from graphkiln.core.errors import OutOfRanges
from tests.config.differences import RANGES
from tests.config.oracle import compare, facts, needs, outcome

CATEGORIES = {
    "endpoint_below_one": "compile_ranges_endpoints: ",
    "unknown_size_word": "is neither a size nor",
    "size_below_one": "compile_sizes: 0 is below 1",
}
ITEM_SIZES = {"float32": 4, "bfloat16": 2}


def ranges_of(given: dict[str, Any]) -> Resolution:
    tokens = given["max_num_batched_tokens"]
    names = ("compile_ranges_endpoints", "compile_sizes", "cudagraph_capture_sizes")
    config = {name: given[name] for name in names if given.get(name) is not None}
    seen: dict[str, Any] = {"max_num_batched_tokens": tokens, "max_num_seqs": min(8, tokens)}
    if "fuse_allreduce_rms" in given:
        forced = dict(given["fuse_allreduce_rms"])
        limit = forced.pop("max_size_mb", None)
        config["pass_config"] = {"fuse_allreduce_rms": True, "fi_allreduce_fusion_max_size_mb": limit}
        seen |= {**forced, "item_size": ITEM_SIZES[forced["dtype"]]}
        del seen["dtype"]
    return resolve(CompilationConfig.from_user(config), facts(**seen))


def found_range(ranges: CompileRanges, tokens: int) -> list[int] | None:
    try:
        found = ranges.find(tokens)
    except OutOfRanges:
        return None
    return [found.start, found.end]


def answer(given: dict[str, Any]) -> dict[str, Any]:
    def run() -> dict[str, Any]:
        settled = ranges_of(given).effective.ranges
        ranges = settled.for_encoder() if given.get("is_encoder") else settled
        return {
            "endpoints": list(settled.endpoints),
            "ranges": [[found.start, found.end] for found in ranges.ranges],
            "single_sizes": list(ranges.single_sizes),
            "compile_sizes": list(ranges.sizes),
            "lookup": [found_range(ranges, tokens) for tokens in given["lookup"]],
        }

    return outcome(run, CATEGORIES)


@needs("ranges")
def test_ranges_and_lookups_are_those_observed() -> None:
    compare("ranges", answer, RANGES)


RANGED = CompileRanges((CompileRange(1, 8), CompileRange(9, 9), CompileRange(10, 64)), (1, 9, 16))


def test_single_sizes_are_compiled_first_and_a_range_of_one_is_not_compiled_twice() -> None:
    assert [str(found) for found in RANGED.in_compile_order] == [
        "(1, 1)", "(16, 16)", "(1, 8)", "(9, 9)", "(10, 64)",
    ]  # fmt: skip


def test_an_exact_size_is_found_before_the_range_around_it() -> None:
    assert [str(RANGED.find(tokens)) for tokens in (1, 2, 9, 16, 17)] == [
        "(1, 1)", "(1, 8)", "(9, 9)", "(16, 16)", "(10, 64)",
    ]  # fmt: skip


@pytest.mark.parametrize("tokens", [0, 65])
def test_a_count_out_of_all_ranges_names_them(tokens: int) -> None:
    with pytest.raises(OutOfRanges) as caught:
        RANGED.find(tokens)
    assert str(caught.value) == (
        f"nothing was compiled for {tokens} tokens: there is (1, 1), (16, 16), (1, 8), (9, 9), (10, 64)"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_endpoint_that_splits_nothing_and_the_word_for_sizes_are_decisions() -> None:
    given = {
        "max_num_batched_tokens": 64,
        "compile_ranges_endpoints": [1, 8, 100],
        "compile_sizes": ["cudagraph_capture_sizes", 3],
        "cudagraph_capture_sizes": [1, 2],
    }
    made = {row.field: (row.asked, row.got, row.reason) for row in ranges_of(given).decisions}
    assert made["compile_ranges_endpoints"] == (
        [1, 8, 100], [8], "only an endpoint between 1 and 64 splits anything",
    )  # fmt: skip
    assert made["compile_sizes"] == (
        ["cudagraph_capture_sizes", 3], [1, 2, 3], "cudagraph_capture_sizes stands for 2 sizes",
    )  # fmt: skip
