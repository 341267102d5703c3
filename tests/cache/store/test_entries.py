"""Whatever is damaged in an entry is named, by file and fault, and never another kind of error."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import EntryDamaged, RootUnusable
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.documents import seal
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.reading import Fault
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store


def body_of(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(path.read_bytes())["body"]
    return body


def reseal(path: Path, **changes: Any) -> None:
    """Write a document whose own digest is right and whose content is not."""
    path.write_bytes(seal(body_of(path) | changes, "test"))


def load(entry: Entry) -> None:
    """Read everything that a start reads, from a fresh look at the folder."""
    fresh = Entry(entry.path)
    fresh.factors()
    for rank in fresh.ranks_expected:
        manifest = fresh.manifest(rank)
        for prefix in manifest.parts:
            fresh.read_bytes(rank, prefix, "graph.py")
            fresh.read_json(rank, prefix, "wiring.json")
        for artifact in manifest.artifacts:
            fresh.artifact_dir(artifact)


def every_file(entry: Entry) -> list[Path]:
    return sorted(path for path in entry.path.rglob("*") if path.is_file() and path.parent.name != "source")


def test_a_sound_entry_gives_what_was_put_in(entry: Entry, factors: Factors) -> None:
    assert (entry.key, entry.lookup, entry.short) == (factors.key, factors.lookup, factors.key[:10])
    assert entry.path.name == entry.short
    assert entry.header["model"] == "tiny"
    assert entry.factors() == factors
    assert entry.ranks() == entry.ranks_expected == ("0_0",)
    assert entry.complete
    assert entry.read_json("0_0", "backbone", "wiring.json") == {"steps": [0, 1]}
    assert entry.read_bytes("0_0", "backbone", "graph.py") == b"# a graph\n"
    assert [entry.source_text(sha256) for sha256 in entry.header["sources"]] == [
        "def forward(x):\n    return x\n"
    ]
    manifest = entry.manifest("0_0")
    assert (manifest.specific, manifest.build) == ({"rank": "0_0"}, {"isa": "avx2"})
    shared, own, again = manifest.parts["backbone"]
    assert shared == again != own
    assert manifest.artifacts == (shared, own)
    assert (entry.artifact_dir(shared) / "data" / "meta.json").read_bytes() == b"{}"
    assert entry.total_bytes == sum(path.stat().st_size for path in entry.path.rglob("*") if path.is_file())
    assert entry.verify() == entry.verify("0_0") == []


def test_nothing_in_an_entry_says_where_it_lies(entry: Entry) -> None:
    for path in entry.path.rglob("*.json"):
        assert str(entry.path.parent) not in path.read_text()


def test_a_moved_entry_is_sound_and_the_old_place_is_not_opened(entry: Entry, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / entry.short
    moved.parent.mkdir()
    os.rename(entry.path, moved)
    entry.path.mkdir()
    (entry.path / "entry.json").write_text("another one")
    load(Entry(moved))
    assert Entry(moved).verify() == []


@pytest.mark.parametrize("damage", ["empty", "half", "one byte", "longer", "missing", "link", "folder"])
def test_each_file_damaged_in_each_way_is_named(entry: Entry, damage: str, tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    shutil.copytree(entry.path, sound)
    for path in every_file(entry):
        name = path.relative_to(entry.path).as_posix()
        data = path.read_bytes()
        path.unlink()
        if damage == "empty":
            path.write_bytes(b"")
        elif damage == "half":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "one byte":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        elif damage == "longer":
            path.write_bytes(data + b"\n")
        elif damage == "link":
            path.symlink_to(sound / name)
        elif damage == "folder":
            path.mkdir()
        with pytest.raises(EntryDamaged) as caught:
            load(entry)
        assert name.startswith(caught.value.file)
        assert caught.value.fault in {"missing", "size", "digest", "schema", "unreadable"}
        assert name in {fault.file for fault in entry.verify()}
        if damage == "folder":
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    assert entry.verify() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"schema": "1"},
        {"format": 99},
        {"key": "0" * 64},
        {"lookup": "0" * 64},
        {"key": None},
        {"hashes": {}},
        {"hashes": {"env": 1, "config": 2, "code": 3, "compiler": 4}},
        {"hashes": ["env", "config", "code", "compiler"]},
        {"ranks_expected": []},
        {"ranks_expected": "0_0"},
        {"ranks_expected": ["../0"]},
        {"ranks_expected": [0]},
        {"created": 5},
        {"factors": {"size": -1, "sha256": "0" * 64}},
        {"factors": {"size": True, "sha256": "0" * 64}},
        {"factors": {"size": 1, "sha256": "0" * 64, "path": "/etc/passwd"}},
        {"factors": None},
        {"sources": []},
        {"sources": {"../../x": 1}},
        {"sources": {"0" * 64: "1"}},
    ],
)
def test_a_header_of_wrong_shape_is_a_schema_fault(entry: Entry, changes: dict[str, Any]) -> None:
    reseal(entry.path / "entry.json", **changes)
    with pytest.raises(EntryDamaged) as caught:
        Entry(entry.path)
    assert (caught.value.file, caught.value.fault) == ("entry.json", "schema")


FILE = {"size": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 7},
        {"rank": "1_0"},
        {"key": "0" * 64},
        {"files": []},
        {"files": {"/etc/passwd": FILE}},
        {"files": {"rank_0_0/../../x": FILE}},
        {"files": {"rank_0_0": FILE}},
        {"files": {"rank_1_0/backbone/graph.py": FILE}},
        {"files": {"entry.json": FILE}},
        {"files": {"artifacts/x": FILE}},
        {"files": {"artifacts/../x/y": FILE}},
        {"files": {f"artifacts/{'0' * 64}/x": FILE}},
        {"files": {"rank_0_0/backbone/graph.py": [1, 2]}},
        {"parts": {"backbone": []}},
        {"parts": {"../x": {"artifacts": []}}},
        {"parts": {"backbone": {"artifacts": ["0" * 64]}}},
        {"parts": {"backbone": {"artifacts": ["../../x"]}}},
        {"parts": {"backbone": {"artifacts": [1]}}},
        {"build": {"isa": "avx512"}},
        {"build_digest": 3},
        {"specific": 1},
    ],
)
def test_a_manifest_of_wrong_shape_is_a_schema_fault(entry: Entry, changes: dict[str, Any]) -> None:
    reseal(entry.path / "rank_0_0" / "manifest.json", **changes)
    with pytest.raises(EntryDamaged) as caught:
        Entry(entry.path).manifest("0_0")
    assert (caught.value.file, caught.value.fault) == ("rank_0_0/manifest.json", "schema")


def write_listed(entry: Entry, name: str, data: bytes) -> None:
    """Write a file of the rank and a manifest that lists it with its right digest."""
    (entry.path / name).write_bytes(data)
    path = entry.path / "rank_0_0" / "manifest.json"
    files = body_of(path)["files"] | {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    reseal(path, files=files)


@pytest.mark.parametrize("data", [b"[]", b'{"a": 1, "a": 2}', b"{" * 5000, b"\xff", b"", b'{"x": 1e999}'])
def test_json_that_has_its_digest_and_is_no_plain_object_is_a_schema_fault(entry: Entry, data: bytes) -> None:
    write_listed(entry, "rank_0_0/backbone/wiring.json", data)
    with pytest.raises(EntryDamaged) as caught:
        Entry(entry.path).read_json("0_0", "backbone", "wiring.json")
    assert (caught.value.file, caught.value.fault) == ("rank_0_0/backbone/wiring.json", "schema")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data | {"config": {"dtype": "float16"}},
        lambda data: data | {"code": None},
        lambda data: data | {"env": 1},
        lambda data: data | {"extra": {}},
        lambda data: {},
        lambda data: data | {"config": {"x": json.loads("[" * 150 + "]" * 150)}},
    ],
)
def test_factors_that_do_not_give_the_hashes_of_the_header_are_a_schema_fault(
    entry: Entry, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    data = json.dumps(change(entry.factors().as_json())).encode()
    (entry.path / "factors.json").write_bytes(data)
    reseal(entry.path / "entry.json", factors={"size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    with pytest.raises(EntryDamaged) as caught:
        Entry(entry.path).factors()
    assert (caught.value.file, caught.value.fault) == ("factors.json", "schema")


def test_an_artifact_with_a_file_too_many_is_not_handed_out(entry: Entry) -> None:
    artifact = entry.manifest("0_0").artifacts[0]
    (entry.path / "artifacts" / artifact / "planted.so").write_bytes(b"x")
    with pytest.raises(EntryDamaged, match="digest"):
        Entry(entry.path).artifact_dir(artifact)


@pytest.mark.parametrize("artifact", ["../../x", "", "0" * 63, "/etc"])
def test_an_artifact_id_is_never_a_path(entry: Entry, artifact: str) -> None:
    with pytest.raises(ValueError, match="not an artifact id"):
        entry.artifact_dir(artifact)


@pytest.mark.parametrize("where", ["entry", "artifacts", "artifact", "rank_0_0", "backbone", "source"])
def test_a_folder_replaced_by_a_link_is_refused(entry: Entry, tmp_path: Path, where: str) -> None:
    places = {
        "entry": entry.path,
        "artifact": entry.path / "artifacts" / entry.manifest("0_0").artifacts[0],
        "backbone": entry.path / "rank_0_0" / "backbone",
    }
    place = places.get(where, entry.path / where)
    os.rename(place, tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    assert {fault.kind for fault in entry.verify()} & {"unreadable", "missing"}
    if where != "source":
        with pytest.raises(EntryDamaged):
            load(entry)


def test_an_artifact_is_read_once_by_one_object(entry: Entry) -> None:
    artifact = entry.manifest("0_0").artifacts[0]
    folder = entry.artifact_dir(artifact)
    (folder / "kernel.so").unlink()
    assert entry.artifact_dir(artifact) == folder
    assert entry.verify() != []


def test_what_nothing_lists_is_extra_and_what_is_written_later_is_not(entry: Entry) -> None:
    for name in ("state.json", "reports/capture.json"):
        (entry.path / name).parent.mkdir(exist_ok=True)
        (entry.path / name).write_text("{}")
    assert entry.verify() == []
    for name in ("note.txt", "rank_0_0/backbone/core.1", "artifacts/x", "source/y.py"):
        (entry.path / name).write_text("")
    extra = ["artifacts/x", "note.txt", "rank_0_0/backbone/core.1", "source/y.py"]
    assert sorted(entry.verify(), key=lambda fault: fault.file) == [
        Fault(n, "extra", "nothing lists it") for n in extra
    ]


def test_a_missing_rank_makes_an_entry_incomplete_not_damaged(
    store: Store, factors: Factors, publish: Callable[..., Entry]
) -> None:
    entry = publish(store, factors, header={"ranks_expected": ["0_0", "1_0"]})
    assert not entry.complete
    assert entry.build_digest is None
    assert entry.verify("0_0") == []
    assert entry.verify() == [Fault("rank_1_0", "missing", "an expected rank")]


def test_the_build_digest_tells_two_builds_of_one_key_apart(
    tmp_path: Path, factors: Factors, publish: Callable[..., Entry]
) -> None:
    one = publish(Store(CacheRoot(tmp_path / "1")), factors)
    same = publish(Store(CacheRoot(tmp_path / "2")), factors, kernel=b"other bytes")
    assert one.build_digest == same.build_digest is not None
    path = same.path / "rank_0_0" / "manifest.json"
    reseal(path, build={"isa": "avx512"}, build_digest=digest({"isa": "avx512"}))
    assert Entry(same.path).key == one.key
    assert Entry(same.path).build_digest != one.build_digest


def test_trouble_of_this_process_is_not_damage_of_the_entry(
    entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*arguments: object, **options: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_more)
        with pytest.raises(RootUnusable, match="too many open files") as caught:
            Entry(entry.path)
    assert "ulimit" in caught.value.remedy
