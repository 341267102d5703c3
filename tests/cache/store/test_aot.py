"""The AOT file: what it holds, that its header is judged alone, and that no damaged byte is handed out."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.store.aot import AotFile, pack
from graphkiln.cache.store.aot_build import aot_bytes
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.halves import aot_folders, aot_name, faults_of_aot, find_aot, lone_halves
from graphkiln.cache.store.store import Store

FLOATS = {"dtype": "float32", "shape": [2], "persistent": False, "base64": "AACAPwAAAEA="}
SOURCES = {"model": {"file_sha256": "1" * 64, "functions": {"forward": "0" * 64}, "stored": None}}
HEADER = {
    "model": "tiny",
    "dtype": "float32",
    "versions": {"torch": "2.13.0", "python": "3.11.7"},
    "target": {
        "device": "cpu",
        "name": "cpu:avx2",
        "arch": "x86_64",
        "isa": "avx2",
        "march": "v3",
        "features": ["avx2"],
    },
    "pieces": {"total": 2, "distinct": 1},
    "phases": [["compile", 1.5]],
    "checked": True,
}


class Counting(BytesIO):
    """A file that remembers how far it was read."""

    furthest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.furthest = max(self.furthest, self.tell())
        return data


@pytest.fixture
def entry(store: Store, other_factors: Callable[..., Any]) -> Entry:
    return publish_whole(store, other_factors)


def publish_whole(store: Store, other_factors: Callable[..., Any]) -> Entry:
    """An entry of one part that has all an AOT file holds, published with one."""
    code = {"backbone": {"functions": {"model": {"forward": "0" * 64}}, "values": []}}
    factors = other_factors(code=code)
    with store.draft(factors.key) as draft:
        artifact = draft.add_artifact({"kernel.so": b"machine code" * 100, "piece.json": b"{}"})
        wiring = {
            "door": {"arguments": [], "smallest": 1, "largest": 8},
            "pieces": [{"artifact": artifact}],
            "sources": SOURCES,
            "model": {"buffers": {"inv_freq": FLOATS}, "layers": []},
            "steps": [],
        }
        draft.add_part("0_0", "backbone", "# a graph\n", wiring, [artifact])
        draft.set_rank("0_0", {}, {"isa": "avx2"})
        return draft.publish(HEADER, factors, "entry")


def opened(data: bytes) -> AotFile:
    return AotFile(BytesIO(data), len(data), "test")


def body_of(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The header of a file as it was packed, and its sections."""
    file = opened(data)
    body = {name: value for name, value in file.header.body.items() if name not in ("aot_format", "sections")}
    return body, {name: file.section(name) for name in file.header.sections}


def test_it_holds_all_parts_of_its_entry_as_plain_data(entry: Entry) -> None:
    file = opened(aot_bytes(entry, "0_0"))
    assert (file.header.key, file.header.lookup, file.header.rank) == (entry.key, entry.lookup, "0_0")
    assert not file.header.contained
    assert file.json("code.json") == entry.factors().as_json()["code"]
    wiring = entry.read_json("0_0", "backbone", "wiring.json")
    assert file.json("backbone/door.json") == wiring["door"]
    assert file.json("backbone/wiring.json")["sources"] == wiring["sources"]
    assert file.json("backbone/model.json")["model"]["buffers"] == {
        "inv_freq": {"dtype": "float32", "shape": [2], "persistent": False}
    }
    buffers = file.section("backbone/buffers.safetensors")
    length = int.from_bytes(buffers[:8], "little")
    facts = {"inv_freq": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert json.loads(buffers[8 : 8 + length]) == facts
    assert buffers[8 + length :] == bytes.fromhex("0000803f00000040")


def test_a_self_contained_one_holds_the_artifacts_too(entry: Entry) -> None:
    file = opened(aot_bytes(entry, "0_0", contained=True))
    ((artifact, files),) = file.header.artifacts.items()
    for name in files:
        lying = (entry.path / "artifacts" / artifact / name).read_bytes()
        assert file.section(f"artifacts/{artifact}/{name}") == lying


def test_it_is_the_same_file_each_time(entry: Entry) -> None:
    assert aot_bytes(entry, "0_0") == aot_bytes(Entry(entry.path), "0_0")


def test_nothing_behind_the_header_is_read_to_judge_it(entry: Entry) -> None:
    data = aot_bytes(entry, "0_0", contained=True)
    end = min(opened(data).header.offsets.values())
    stream = Counting(data)
    file = AotFile(stream, len(data), "test")
    assert stream.furthest == end
    file.section("code.json")
    assert stream.furthest > end
    cut = Counting(data[:end])
    assert AotFile(cut, len(data), "test").header.key == entry.key


def test_published_with_its_entry_and_gone_with_it(store: Store, entry: Entry, root: Any) -> None:
    lying = root.cache / aot_name(entry.key, "0_0")
    assert lying.read_bytes() == aot_bytes(entry, "0_0")
    assert [file.header.key for file in find_aot(root, entry.lookup, "0_0") if isinstance(file, AotFile)] == [
        entry.key
    ]
    assert list(find_aot(root, "0" * 64, "0_0")) == []
    assert store.discard(entry) is not None
    assert aot_folders(root) == []
    assert list(find_aot(root, entry.lookup, "0_0")) == []


def test_set_aside_with_its_entry(store: Store, entry: Entry, root: Any) -> None:
    place = store.set_aside(entry, {"reason": "a test"})
    assert place is not None
    assert aot_folders(root) == []
    assert (place / "torch_aot_compile" / entry.key / "rank_0_0" / "model").is_file()


@pytest.mark.parametrize("how", ["missing", "flipped", "empty", "another"])
def test_one_that_is_not_right_is_told_and_written_again(
    store: Store, entry: Entry, root: Any, how: str
) -> None:
    lying: Path = root.cache / aot_name(entry.key, "0_0")
    sound = lying.read_bytes()
    if how == "missing":
        lying.unlink()
    else:
        body, sections = body_of(sound)
        wrong = {
            "flipped": sound[:-1] + bytes([sound[-1] ^ 1]),
            "empty": b"",
            "another": pack({**body, "model": "other"}, sections),
        }
        lying.write_bytes(wrong[how])
    (damage,) = faults_of_aot(root, entry)
    assert damage.file == aot_name(entry.key, "0_0")
    assert store.renew_aot(entry, "0_0")
    assert lying.read_bytes() == sound
    assert list(faults_of_aot(root, entry)) == []
    assert not store.renew_aot(entry, "0_0")


def test_one_without_its_entry_is_lone_and_can_go(store: Store, entry: Entry, root: Any) -> None:
    assert lone_halves(root, [entry.key]) == []
    assert not store.discard_lone(root.cache / "torch_aot_compile" / entry.key)
    entry.path.rename(root.path / "elsewhere")
    (lone,) = lone_halves(root, [])
    assert lone.name == entry.key
    assert store.discard_lone(lone)
    assert aot_folders(root) == []


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One of the ways in which bytes get lost, changed or moved."""
    place, length = rng.randrange(len(data)), rng.choice((1, 1, 1, 2, 8, 64, 512))
    piece = data[place : place + length]
    how = rng.randrange(8)
    if how == 0:
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    if how == 1:
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if how == 2:
        return data[:place] + data[place + length :]
    if how == 3:
        return data[:place] + piece + data[place:]
    if how == 4:
        return data[:place]
    if how == 5:
        return data[:place] + bytes(len(piece)) + data[place + len(piece) :]
    if how == 6:
        return data[:place] + rng.randbytes(len(piece)) + data[place + len(piece) :]
    return data + rng.randbytes(length)


@pytest.mark.parametrize("where", ["header", "body"])
def test_no_damaged_byte_is_ever_handed_out(entry: Entry, where: str) -> None:
    data = aot_bytes(entry, "0_0", contained=True)
    end = min(opened(data).header.offsets.values())
    sections = body_of(data)[1]
    rng = random.Random(f"aot {where}")
    refused, faults = 0, set()
    for _ in range(3000):
        if where == "header":
            damaged = mutated(data[:end], rng) + data[end:]
        else:
            damaged = data[:end] + mutated(data[end:], rng)
        if damaged == data:
            continue
        try:
            file = opened(damaged)
            read = {name: file.section(name) for name in sections}
        except EntryDamaged as damage:
            faults.add(damage.fault)
            refused += 1
        else:
            raise AssertionError(f"a damaged file was read without a word: {read.keys()}")
    assert refused > 2900
    assert faults <= {"unreadable", "schema", "size", "digest"}


def rehashed(body: Any, tail: bytes) -> bytes:
    """A file whose digests agree, whatever its header says."""
    header = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    named = body.get("lookup") if isinstance(body, dict) else None
    lookup = named if isinstance(named, str) and len(named) == 64 and named.isascii() else "0" * 64
    line = f"graphkiln-aot 0001 {lookup} {len(header):010d} {hashlib.sha256(header).hexdigest()}\n"
    return line.encode() + header + tail


def twisted(value: Any, rng: random.Random) -> Any:
    """A JSON value with one thing in it changed into something else that is JSON too."""
    others: list[Any] = [None, True, -1, 0, 1 << 62, 1.5, "", "x", "../../etc/passwd", [], {}, [[]], {"a": 1}]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: twisted(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:at] + value[at + 1 :]
        if rng.random() < 0.2:
            return [*value, value[at]]
        return [*value[:at], twisted(value[at], rng), *value[at + 1 :]]
    return rng.choice([other for other in others if other != value])


def test_a_header_that_makes_no_sense_is_refused_though_its_digests_agree(entry: Entry) -> None:
    data = aot_bytes(entry, "0_0", contained=True)
    header = opened(data).header
    tail = data[min(header.offsets.values()) :]
    rng = random.Random("aot structure")
    whole = 0
    for _ in range(3000):
        try:
            file = opened(rehashed(twisted(header.body, rng), tail))
        except EntryDamaged:
            continue
        # What opens is whole: every section can be read, and the key is the one of its factors.
        assert list(file.faults()) == []
        assert file.header.key == entry.key
        whole += 1
    # Labels, versions and seconds may be anything of their kind.
    assert 0 < whole < 1000
