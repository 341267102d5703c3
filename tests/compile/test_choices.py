"""Frozen choices between configurations: the file, what it is refused for, and the build that it makes."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from graphkiln.cache.errors import DiskFull
from graphkiln.cache.store import draft as drafts
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.store import Store
from graphkiln.core.aot_use import AotUse
from graphkiln.core.candidates import Candidates
from graphkiln.core.choices import Choice, Choices, read_choices
from graphkiln.core.compile.build import _frozen
from graphkiln.core.compile.inductor import BuiltPiece
from graphkiln.core.compile.seal import build_identity, seal, triton_id
from graphkiln.core.compile.triton_kernels import BuiltTriton
from graphkiln.core.errors import BadChoices, NotReplaced
from graphkiln.core.mending import Mending
from graphkiln.core.publication import _make_room, publish
from graphkiln.core.stored import EntryStored
from tests.cache.inspect.made import cache_at, make_entry
from tests.compile.test_sealed_triton import SOURCE, WRAPPER, variant
from tests.target.elf import cubin

TARGET = {"device": "cuda", "gpu": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132}
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}
ROW: dict[str, Any] = {"name": "twice", "config": {"XBLOCK": 128, "num_warps": 4, "num_stages": 1}}
GOOD: dict[str, Any] = {"schema": 1, "target": TARGET, "versions": VERSIONS, "kernels": {"a" * 64: ROW}}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "choices.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    return path


def kernel(folder: Path) -> BuiltTriton:
    file = folder / "twice.cubin"
    file.write_bytes(cubin("twice", 16))
    both = (variant(file, 64), variant(file, 128))
    return BuiltTriton("twice", SOURCE, ("in_ptr0", "xnumel"), (), (), both)


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    found = read_choices(written(tmp_path))
    assert found.as_json() == GOOD
    again = read_choices(written(tmp_path, kernels=dict(reversed(GOOD["kernels"].items()))))
    assert found.digest == again.digest
    other = read_choices(written(tmp_path, kernels={"a" * 64: {**ROW, "config": {"XBLOCK": 64}}}))
    assert found.digest != other.digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"more": 1}, "the file has an unknown field 'more'"),
        ({"schema": 2}, "has schema 2, this version reads 1"),
        ({"versions": {"torch": "2.11.0"}}, "versions has no field 'triton'"),
        ({"versions": {"torch": 2, "triton": "3.6.0"}}, "versions.torch is 2, not a text"),
        ({"target": []}, "target is not an object"),
        ({"kernels": []}, "kernels is not an object"),
        ({"kernels": {"a": {"name": "twice"}}}, "kernel 'a' has no field 'config'"),
        ({"kernels": {"a": {**ROW, "warps": 4}}}, "kernel 'a' has an unknown field 'warps'"),
        ({"kernels": {"a": {**ROW, "config": 4}}}, "the config of kernel 'a' is 4, not values by name"),
        ({"kernels": {"a": {**ROW, "name": None}}}, "the name of kernel 'a' is None, not a text"),
        ({"kernels": {"a": {**ROW, "name": "x" * 1001}}}, "not a text of up to 1000 letters"),
    ],
)
def test_what_is_no_file_of_choices_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadChoices) as caught:
        read_choices(written(tmp_path, **changes))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["schema", "target", "versions", "kernels"])
def test_a_missing_field_is_named(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "choices.json"
    path.write_text(json.dumps({name: value for name, value in GOOD.items() if name != missing}))
    with pytest.raises(BadChoices, match=f"has no field '{missing}'"):
        read_choices(path)


def test_no_file_and_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadChoices, match="cannot be read"):
        read_choices(tmp_path / "absent.json")
    (tmp_path / "choices.json").write_text("{")
    with pytest.raises(BadChoices, match="is not JSON"):
        read_choices(tmp_path / "choices.json")


def test_what_is_no_file_of_a_sensible_size_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(BadChoices, match="is not a regular file"):
        read_choices(tmp_path)
    path = written(tmp_path)
    os.truncate(path, 1 << 40)
    with pytest.raises(BadChoices, match="is larger than 16777216 bytes"):
        read_choices(path)


def test_choices_of_another_device_or_another_triton_are_refused(tmp_path: Path) -> None:
    found = read_choices(written(tmp_path))
    found.require_target(TARGET, VERSIONS)
    with pytest.raises(BadChoices, match=r"made on NVIDIA H200 .*this is for NVIDIA L4 .*\(gpu\)"):
        found.require_target({**TARGET, "gpu": "NVIDIA L4"}, VERSIONS)
    with pytest.raises(BadChoices, match=r"made with triton 3\.6\.0, this is triton 3\.7\.0"):
        found.require_target(TARGET, {**VERSIONS, "triton": "3.7.0"})


def test_a_kernel_is_built_with_the_configuration_that_was_chosen(tmp_path: Path) -> None:
    built = kernel(tmp_path)
    piece = BuiltPiece(WRAPPER, [], {}, 1, (), None, triton={SOURCE: built}, aligned=(0,))
    choices = Choices("f", TARGET, VERSIONS, {triton_id(built): Choice("twice", ROW["config"])})
    frozen, used = _frozen(piece, choices)
    assert [one.config["XBLOCK"] for one in frozen.triton[SOURCE].variants] == [128]
    assert used == {triton_id(built)}
    choices.require_used(used)

    # The same build wherever it is made, and another one than with all configurations.
    files = seal(frozen, "f" * 64)
    assert build_identity(files) == build_identity(seal(_frozen(piece, choices)[0], "f" * 64))
    assert build_identity(files) != build_identity(seal(piece, "f" * 64))


def test_a_kernel_without_a_choice_keeps_all_its_configurations(tmp_path: Path) -> None:
    piece = BuiltPiece(WRAPPER, [], {}, 1, (), None, triton={SOURCE: kernel(tmp_path)})
    frozen, used = _frozen(piece, Choices("f", TARGET, VERSIONS, {}))
    assert frozen == piece
    assert not used


def test_a_choice_that_is_none_of_a_kernel_s_is_named(tmp_path: Path) -> None:
    built = kernel(tmp_path)
    piece = BuiltPiece(WRAPPER, [], {}, 1, (), None, triton={SOURCE: built})
    config = {**ROW["config"], "num_warps": 16}
    choices = Choices("choices f", TARGET, VERSIONS, {triton_id(built): Choice("twice", config)})
    with pytest.raises(BadChoices, match=r"kernel twice \(.*\) has no configuration .*'num_warps': 16"):
        _frozen(piece, choices)


def test_a_choice_for_a_kernel_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = replace(read_choices(written(tmp_path)), where="choices f")
    with pytest.raises(BadChoices, match=r"kernel twice \(aaaaaaaaaa\) is no kernel of this model"):
        found.require_used([])


@pytest.mark.parametrize(("choices", "gone"), [("mine", False), ("others", True), (None, True)])
def test_an_entry_that_was_built_with_other_choices_makes_room(
    tmp_path: Path, choices: str | None, gone: bool
) -> None:
    store = cache_at(tmp_path)
    entry = make_entry(store, header={"choices": choices} if choices else {})
    _make_room(store, entry.key, "mine")
    assert entry.path.exists() is not gone
    assert bool(list((tmp_path / "quarantine").glob("*"))) is gone


def test_only_an_entry_of_the_same_choices_is_one_to_start_from(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    choices = Choices("choices f", TARGET, VERSIONS, {})
    make_entry(store, "one")
    make_entry(store, "two", header={"choices": choices.digest})
    lookup = next(entry for entry in store.entries() if isinstance(entry, Entry)).lookup

    def found(asked: Choices | None) -> tuple[list[str], list[Any]]:
        journal = SimpleNamespace(reasons=[], note=lambda text: None)
        plan = SimpleNamespace(choices=asked, lookup=lookup)
        candidates = Candidates(cast(Any, plan), store, cast(Any, journal), AotUse(enabled=False), "test")
        return [
            str(one.entry and one.entry.header.get("choices")) for one in candidates.entries()
        ], journal.reasons

    assert sorted(found(None)[0]) == sorted([choices.digest, "None"])
    entries, reasons = found(choices)
    assert entries == [choices.digest]
    assert [(reason.then, reason.now) for reason in reasons] == [("other choices", "choices f")]


def published(store: Store, old: Entry) -> Entry:
    """Publishes a build of an entry's key with choices, beside or in the place of the entry."""
    built = SimpleNamespace(artifacts=(), wiring={"pieces": []}, graph_py="", passes=(), build={})
    traced = SimpleNamespace(code=SimpleNamespace(sources={}))
    part = SimpleNamespace(prefix="backbone", traced=traced, built=built)
    with store.draft(old.key) as draft:
        return publish(
            store, draft, old.factors(), {"choices": "mine"}, [cast(Any, part)],
            description=None, store_source=False, aot=None,
        )  # fmt: skip


def test_an_entry_is_set_aside_for_one_that_is_finished_and_no_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    store = cache_at(tmp_path)
    old = make_entry(store)
    with monkeypatch.context() as patch:
        patch.setattr(drafts, "flush_tree", full)
        with pytest.raises(DiskFull):
            published(store, old)
    assert [one.path for one in store.entries()] == [old.path]
    assert published(store, old).header["choices"] == "mine"
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_an_entry_that_cannot_be_set_aside_is_not_taken_for_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cache_at(tmp_path)
    old = make_entry(store)
    monkeypatch.setattr(store, "set_aside", lambda entry, reason: None)
    with pytest.raises(NotReplaced, match=f"entry {old.short}: it was built with other choices"):
        published(store, old)


@pytest.mark.parametrize("choices", [None, "mine"])
def test_pieces_that_were_built_with_choices_are_not_mixed_with_others(
    tmp_path: Path, choices: str | None
) -> None:
    plain = make_entry(cache_at(tmp_path / "plain"))
    [artifact] = plain.manifest("0_0").artifacts
    piece = {"artifact": artifact, "fingerprint": "f", "piece": 0, "range": [1, 8], "dynamic": True}
    header = {"choices": choices} if choices else {}
    entry = make_entry(cache_at(tmp_path / "other"), wiring={"pieces": [piece]}, header=header)
    found = Mending(EntryStored(entry), entry.key, frozenset()).sound("backbone")
    assert set(found) == (set() if choices else {("f", (1, 8))})
