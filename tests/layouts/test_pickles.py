"""A pickle is looked into without being run: nothing is resolved, nothing called, and limits hold."""

from __future__ import annotations

import collections
import datetime
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from graphkiln.cache.layouts import pickles, spans
from graphkiln.cache.layouts.pickled_values import Global, Made, nested, plain_text
from graphkiln.cache.layouts.pickles import PickleFault, read_pickle
from graphkiln.cache.layouts.spans import OpenFile, Span, joined

PLAIN: list[Any] = [
    None, True, False, 0, -1, 2**70, 1.5, "text", "é", b"bytes", [1, [2]], (1,), (1, 2), (1, 2, 3),
    (1, 2, 3, 4),
    {"a": {1: 2}}, {1, 2}, frozenset({3}), [], {}, (), set(),
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back_as_they_were(protocol: int) -> None:
    # Before protocol 4 sets and bytes are made by calls, which are recorded instead.
    values = [one for one in PLAIN if protocol >= 4 or not isinstance(one, (set, frozenset, bytes))]
    assert read_pickle(pickle.dumps(values, protocol)) == values


@pytest.mark.parametrize("protocol", range(6))
def test_what_would_be_called_is_recorded(protocol: int) -> None:
    moment = datetime.date(2020, 1, 2)
    found = read_pickle(pickle.dumps([moment, os.getcwd, collections.OrderedDict(a=1)], protocol))
    assert isinstance(found[0], Made)
    assert found[0].name == "datetime.date"
    assert found[1] == Global("posix", "getcwd")
    assert [one for one in nested(found[2]) if one == "a"] == ["a"]


def test_shared_and_cyclic_values_are_seen_once() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    found = read_pickle(pickle.dumps(loop))
    assert sum(1 for _ in nested(found)) == 2
    doubling: Any = ["leaf"]
    for _ in range(60):
        doubling = [doubling, doubling]
    assert sum(1 for _ in nested(read_pickle(pickle.dumps(doubling)))) == 62


class Planted:
    """Unpickling it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_a_planted_call_is_not_made(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for protocol in range(6):
        data = pickle.dumps({"a": Planted(marker)}, protocol)
        made = [one for one in nested(read_pickle(data)) if isinstance(one, Made)]
        assert any(isinstance(one.by, Made) and one.by.name.endswith("getattr") for one in made) or any(
            one.name.endswith("touch") for one in made
        )
    assert not marker.exists()
    pickle.loads(data)
    assert marker.exists()


def test_old_opcodes_that_call_are_recorded_too() -> None:
    assert read_pickle(b"(S'a'\nios\nsystem\n.").name == "os.system"
    assert read_pickle(b"(cos\nsystem\nS'a'\no.").name == "os.system"
    assert read_pickle(b"Pname\n.").name == "persistent id"
    assert read_pickle(b"\x80\x02\x82\x01.").name == "extension"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (pickle.dumps(list(range(100)))[:50], "cut off"),
        (pickle.dumps("x" * 100)[:50], "cut off"),
        (b"no pickle at all", "no pickle"),
        (b"0.", "no pickle"),
        (b"e.", "no pickle"),
        (b"(.", "no pickle"),
        (b"h\x05.", "no pickle"),
        (b"NN.", "no pickle"),
        (b"N.", ""),
    ],
)
def test_what_is_no_whole_pickle_is_refused(data: bytes, reason: str) -> None:
    if not reason:
        assert read_pickle(data) is None
        return
    with pytest.raises(PickleFault, match=reason):
        read_pickle(data)


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "CHECK_EVERY", 1)
    monkeypatch.setattr(pickles, "MAX_OPCODES", 50)
    monkeypatch.setattr(pickles, "MAX_MARKS", 3)
    monkeypatch.setattr(pickles, "MAX_STACK", 20)
    monkeypatch.setattr(pickles, "MAX_MEMO", 5)
    monkeypatch.setattr(pickles, "MAX_BYTES", 200)
    for data, reason in (
        (b"N0" * 40 + b"N.", "opcodes"),
        (b"((((N.", "marks"),
        (b"N" * 30 + b".", "too many values"),
        (b"\x80\x04N" + b"\x94" * 10 + b".", "too many values"),
        (b"N0" * 200 + b"N.", "bytes are more"),
    ):
        with pytest.raises(PickleFault, match=reason):
            read_pickle(data)


def test_deep_values_neither_end_the_process_nor_become_keys() -> None:
    deep = b"\x80\x04)" + b"\x85" * 300_000
    code = (
        "import sys; from graphkiln.cache.layouts.pickles import read_pickle\n"
        "from graphkiln.cache.layouts.pickled_values import nested, plain_text\n"
        "deep = b'\\x80\\x04)' + b'\\x85' * 300_000\n"
        "found = read_pickle(deep + b'.')\n"
        "print(sum(1 for _ in nested(found)), repr(plain_text(found)))\n"
        "print(len(read_pickle(b'\\x80\\x04}' + deep[2:] + b'Ns.')))\n"
        "print(len(read_pickle(b'\\x80\\x04\\x8f(' + deep[2:] + b'\\x90.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["300001", "''", "1", "1"]), done.stderr
    assert len(deep) > 300_000


def test_texts_of_what_was_read_never_go_deep() -> None:
    assert plain_text(Made(Global("torch.torch_version", "TorchVersion"), ("2.13.0",))) == "2.13.0"
    assert plain_text((3, 9)) == "3.9"
    assert (plain_text(None), plain_text([1]), plain_text(2**9999), plain_text(((1,),))) == ("", "", "", "")


def test_no_bytes_make_it_raise_anything_else() -> None:
    seed = pickle.dumps({"a": [1, (2, "x"), {3}], "b": datetime.date(2020, 1, 2), "c": b"y" * 40})
    chance = random.Random(7)
    for _ in range(3000):
        data = bytearray(seed)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            sum(1 for _ in nested(read_pickle(bytes(data))))
        except PickleFault:
            continue


class Counted(OpenFile):
    """Counts the bytes that were read."""

    @property
    def count(self) -> int:
        return sum(len(data) for _, data in self.reads)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[bytes], Span]]:
    """Gives bytes as a file that is open."""
    streams: list[BinaryIO] = []

    def opened(data: bytes) -> Span:
        path = tmp_path / str(len(streams))
        path.write_bytes(data)
        streams.append(path.open("rb"))
        return Span(Counted(streams[-1].fileno()), 0, len(data))

    yield opened
    for stream in streams:
        stream.close()


def test_what_is_large_in_a_file_stays_there_until_it_is_asked_for(opened: Callable[[bytes], Span]) -> None:
    long, data = "é" * 100_000, b"x" * 1_000_000
    values = ["short", long, b"short", data, list(range(10_000))]
    span = opened(pickle.dumps(values, 4))
    found = read_pickle(span)
    assert [type(one) for one in found] == [str, Span, bytes, Span, list]
    assert isinstance(span.file, Counted)
    assert span.file.count < 50_000
    assert (str(found[1].read(), "utf-8"), found[3].read(), found[4]) == (long, data, values[4])
    assert read_pickle(pickle.dumps(values, 4)) == values


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("chunk", [spans.CHUNK, 600])
def test_a_file_gives_what_its_bytes_give(
    protocol: int, chunk: int, opened: Callable[[bytes], Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "CHUNK", chunk)
    plain = [one for one in PLAIN if protocol >= 4 or not isinstance(one, (set, frozenset, bytes))]
    values = [[plain] * 3, ["x" * size for size in range(1000)], 2**9000, list(range(70_000, 80_000)), 0.5]
    data = pickle.dumps(values, protocol)
    assert read_pickle(opened(data)) == read_pickle(data) == values
    for cut in (1, 100, 600, len(data) // 2, len(data) - 1):
        with pytest.raises(PickleFault, match="cut off"):
            read_pickle(opened(data[:cut]))


def test_a_file_that_becomes_shorter_meanwhile_is_cut_off(opened: Callable[[bytes], Span]) -> None:
    data = pickle.dumps(["x" * 2000, b"y" * 20_000], 4)
    span = opened(data[:10_000])
    with pytest.raises(PickleFault, match="cut off"):
        read_pickle(Span(span.file, 0, len(data)))


def test_a_tuple_that_holds_itself_is_read() -> None:
    inner: list[Any] = []
    whole = (1, 2, 3, inner)
    inner.append(whole)
    for protocol in range(6):
        found = read_pickle(pickle.dumps(whole, protocol))
        assert (found[:3], found[3][0][:3]) == ((1, 2, 3), (1, 2, 3))


def test_reads_that_touch_become_one() -> None:
    reads = [(10, b"klmno"), (0, b"abc"), (2, b"cde"), (12, b"m"), (13, b"nop"), (30, b"z")]
    assert joined(reads) == [(0, b"abcde"), (10, b"klmnop"), (30, b"z")]
