"""Descriptions of devices: what is in the built-in ones, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from graphkiln.core.errors import BadTarget
from graphkiln.core.target.cpu import CpuTarget
from graphkiln.core.target.cuda import CudaTarget
from graphkiln.core.target.description import built_in, parse_description, read_description
from graphkiln.core.target.named import find_target

H200: dict[str, Any] = json.loads(built_in()["h200"].read_text())


def test_every_built_in_description_is_sound_and_says_where_it_is_from() -> None:
    origins = {title: read_description(path).origin for title, path in built_in().items()}
    assert origins.pop("h200") == "captured"
    assert {"a100-sxm-80gb", "b200", "h100-sxm", "l4", "l40s", "rtx4090"} == set(origins)
    assert set(origins.values()) == {"derived"}


def test_what_is_read_is_what_would_be_written() -> None:
    assert read_description(built_in()["h200"]).as_json() == H200


def test_a_target_is_found_by_title_and_by_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(H200))
    named, written = find_target("h200"), find_target(str(file))
    assert isinstance(named, CudaTarget)
    assert (named.name, written.name) == ("h200", "mine")
    assert named.as_factor() == written.as_factor()
    assert isinstance(find_target("cpu"), CpuTarget)


def test_memory_and_caches_are_in_no_key() -> None:
    assert {"total_memory", "L2_cache_size"}.isdisjoint(find_target("h200").as_factor())


WRONG: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "is not JSON"),
    "not an object": ([], "is not a JSON object"),
    "an unknown field": ({**H200, "uuid": "x"}, "the description has an unknown field 'uuid'"),
    "a missing field": (
        {k: v for k, v in H200.items() if k != "origin"},
        "the description has no field 'origin'",
    ),
    "an unknown property": (
        {**H200, "device": {**H200["device"], "pci": 3}},
        "device has an unknown field 'pci'",
    ),
    "a missing property": (
        {**H200, "device": {k: v for k, v in H200["device"].items() if k != "major"}},
        "device has no field 'major'",
    ),
    "a text for a count": (
        {**H200, "device": {**H200["device"], "warp_size": "32"}},
        "device.warp_size is '32', not a count",
    ),
    "a negative count": (
        {**H200, "device": {**H200["device"], "warp_size": -1}},
        "device.warp_size is -1, not a count",
    ),
    "a count that no float can hold": (
        {**H200, "device": {**H200["device"], "total_memory": 10**400}},
        "at most 9223372036854775807 is read",
    ),
    "a count above 64 bits": (
        {**H200, "device": {**H200["device"], "warp_size": 2**63}},
        "device.warp_size is 9223372036854775808, at most 9223372036854775807 is read",
    ),
    "a long text": (
        {**H200, "device": {**H200["device"], "name": "x" * 257}},
        "device.name has 257 letters, at most 256 are read",
    ),
    "a long note": ({**H200, "note": "x" * 4097}, "note has 4097 letters, at most 4096 are read"),
    "nested deeply": ('{"a":' * 100_000, "is nested too deeply"),
    "a large file": (json.dumps(H200) + " " * (1 << 20), "is larger than 1048576 bytes"),
    "a number for a text": (
        {**H200, "versions": {**H200["versions"], "torch": 2.11}},
        "versions.torch is 2.11, not a text",
    ),
    "an old schema": ({**{k: v for k, v in H200.items() if k != "attention"}, "schema": 1}, "has schema 1"),
    "a count of nothing": (
        {**H200, "device": {**H200["device"], "multi_processor_count": 0}},
        "device.multi_processor_count is 0, which no device has",
    ),
    "infinity": (json.dumps(H200).replace('"warp_size": 32', '"warp_size": 1e999'), "1e999 is out of range"),
    "a truth for a count": (
        {**H200, "device": {**H200["device"], "warp_size": True}},
        "device.warp_size is True, not a count",
    ),
    "an empty text": ({**H200, "device": {**H200["device"], "name": " "}}, "device.name is empty"),
    "a field twice": (
        json.dumps(H200).replace('"major": 9', '"major": 9, "major": 8'),
        "a key stands twice, 'major'",
    ),
    "a list of rows": ({**H200, "attention": ["cudnn"]}, "attention is not an object"),
    "an unknown kernel": (
        {**H200, "attention": {"bfloat16 64 plain": "fa9"}},
        "attention 'bfloat16 64 plain' is 'fa9', not math, flash, efficient, cudnn",
    ),
    "too many rows": (
        {**H200, "attention": {str(row): "math" for row in range(1001)}},
        "attention has 1001 rows, at most 1000 are read",
    ),
    "no text at all": (b"\xff\xfe", "is not JSON"),
    "another schema": ({**H200, "schema": 9}, "has schema 9, this version reads 2"),
    "another origin": ({**H200, "origin": "hearsay"}, "origin is 'hearsay'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_line_that_names_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, said = WRONG[name]
    file = tmp_path / "gpu.json"
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadTarget) as caught:
        find_target(str(file))
    assert said in str(caught.value)
    assert "gpu.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(file))


def test_a_place_without_bytes_is_one_line_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name, said in [("pipe", "regular file"), ("folder", "regular file"), ("none", "cannot be read")]:
        with pytest.raises(BadTarget, match=said):
            find_target(str(tmp_path / f"{name}.json"))


def test_a_captured_table_of_attention_is_read_as_it_was_written() -> None:
    rows = {"bfloat16 64 plain": "cudnn", "float32 64 masked": "efficient"}
    found = parse_description("here", "here", {**H200, "attention": rows})
    assert found.as_json()["attention"] == rows
    assert parse_description("here", "here", found.as_json()) == found


def test_an_empty_name_is_called_empty() -> None:
    for name in ("", " "):
        with pytest.raises(BadTarget, match="target: the name is empty"):
            find_target(name)


def test_a_name_that_is_none_lists_the_good_ones() -> None:
    with pytest.raises(BadTarget) as caught:
        find_target("h9000")
    assert "rtx4090" in caught.value.remedy


def test_a_name_that_is_too_long_for_a_file_is_none() -> None:
    with pytest.raises(BadTarget, match="there is no such target") as caught:
        find_target("h" * 5000)
    assert len(str(caught.value)) < 300
