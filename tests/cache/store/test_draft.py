"""A draft is private, becomes an entry whole, and leaves nothing when it does not."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import CacheError, DiskFull, FactorsChanged, NotCanonical, RootUnusable
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store


def left_over(root: CacheRoot) -> list[str]:
    """What a finished or failed draft must not leave."""
    return [path.name for path in (*root.staging.iterdir(), *root.locks.glob("draft-*"))]


def test_an_entry_appears_only_when_it_is_published(store: Store, root: CacheRoot, factors: Factors) -> None:
    with store.draft(factors.key) as draft:
        artifact = draft.add_artifact({"a": b"1"})
        draft.add_part("0_0", "backbone", "", {}, [artifact])
        draft.set_rank("0_0", {}, {})
        assert draft.path.is_relative_to(root.staging)
        assert draft.scratch.is_dir()
        assert not draft.scratch.is_relative_to(draft.path)
        assert store.entries() == []
        entry = draft.publish({}, factors)
        assert [found.path for found in store.find(factors.lookup)] == [entry.path]
    assert left_over(root) == []


def test_everything_published_is_private_to_its_user(entry: Entry) -> None:
    for path in [entry.path, *entry.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_failed_draft_leaves_nothing(store: Store, root: CacheRoot, factors: Factors) -> None:
    def fail() -> None:
        with store.draft(factors.key) as draft:
            draft.add_artifact({"a": b"1"})
            (draft.scratch / "deep" / "er").mkdir(parents=True)
            assert len(left_over(root)) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert left_over(root) == []
    assert store.entries() == []


def test_equal_pieces_are_stored_once(store: Store, factors: Factors) -> None:
    with store.draft(factors.key) as draft:
        (draft.scratch / "x").write_bytes(b"same")
        ids = {draft.add_artifact({"k.so": content}) for content in (b"same", draft.scratch / "x", b"same")}
        other = draft.add_artifact({"other.so": b"same"})
        assert len(ids) == 1
        assert other not in ids
        assert sorted(os.listdir(draft.path / "artifacts")) == sorted([*ids, other])


def test_factors_that_changed_since_the_key_was_made_are_refused(
    store: Store, factors: Factors, other_factors: Callable[..., Factors]
) -> None:
    live: dict[str, Any] = {"splitting_ops": ["a"]}
    before = other_factors(config=live)
    with store.draft(before.key) as draft:
        draft.add_part("0_0", "backbone", "", {}, [])
        draft.set_rank("0_0", {}, {})
        live["splitting_ops"].append("b")
        with pytest.raises(FactorsChanged) as caught:
            draft.publish({}, other_factors(config=live))
    assert caught.value.key_before == before.key
    assert caught.value.key_now == other_factors(config=live).key
    assert store.entries() == []


def test_values_given_for_a_rank_are_copied_when_they_are_given(store: Store, factors: Factors) -> None:
    build: dict[str, Any] = {"kernels": ["a"]}
    with store.draft(factors.key) as draft:
        draft.add_part("0_0", "backbone", "", {}, [])
        draft.set_rank("0_0", {}, build)
        build["kernels"].append("b")
        entry = draft.publish({}, factors)
    assert entry.manifest("0_0").build == {"kernels": ["a"]}


def test_a_draft_is_published_once(store: Store, factors: Factors) -> None:
    with store.draft(factors.key) as draft:
        draft.add_part("0_0", "backbone", "", {}, [])
        draft.set_rank("0_0", {}, {})
        draft.publish({}, factors)
        with pytest.raises(ValueError, match="once"):
            draft.publish({}, factors)


@pytest.mark.parametrize("name", ["/abs", "../x", "a/../../x", "", "a//b", "x" * 256])
def test_names_that_could_lead_out_are_refused(store: Store, factors: Factors, name: str) -> None:
    with store.draft(factors.key) as draft:
        with pytest.raises(ValueError, match=r"not a relative path|longer than"):
            draft.add_artifact({name: b""})
        for rank, prefix in (("../0", "backbone"), ("0_0", "../x"), ("0", "backbone"), ("00_0", "backbone")):
            with pytest.raises(ValueError, match="not a"):
                draft.add_part(rank, prefix, "", {}, [])


def test_what_is_put_together_wrongly_is_refused(store: Store, factors: Factors) -> None:
    with pytest.raises(ValueError, match="not a key"):
        store.draft("abc")
    with store.draft(factors.key) as draft:
        with pytest.raises(ValueError, match="not artifacts of this draft"):
            draft.add_part("0_0", "backbone", "", {}, ["0" * 64])
        with pytest.raises(ValueError, match="at least one file"):
            draft.add_artifact({})
        with pytest.raises(ValueError, match="every rank"):
            draft.publish({}, factors)
        with pytest.raises(NotCanonical, match=r"wiring\.pieces\[0\]"):
            draft.add_part("0_0", "backbone", "", {"pieces": [object()]}, [])
        draft.add_part("0_0", "backbone", "", {}, [])
        with pytest.raises(ValueError, match="every rank"):
            draft.publish({}, factors)
        draft.set_rank("0_0", {}, {})
        with pytest.raises(ValueError, match="created, key cannot be given"):
            draft.publish({"key": "0" * 64, "created": "then"}, factors)
        with pytest.raises(NotCanonical, match=r"header\.when"):
            draft.publish({"when": object()}, factors)


def test_a_missing_scratch_file_is_the_callers_error(store: Store, factors: Factors) -> None:
    with store.draft(factors.key) as draft, pytest.raises(FileNotFoundError):
        draft.add_artifact({"k.so": draft.scratch / "never-written"})


@pytest.mark.parametrize("call", ["write", "fsync", "mkdir", "rename"])
def test_a_disk_that_fills_up_at_any_moment_is_said_and_leaves_nothing(
    store: Store,
    root: CacheRoot,
    factors: Factors,
    publish: Callable[..., Entry],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    root.ensure()
    if call == "write":
        from graphkiln.cache.store import draft as module

        monkeypatch.setattr(module, "copy_new", full)
    else:
        monkeypatch.setattr(os, call, full)
    with pytest.raises(DiskFull) as caught:
        publish(store, factors)
    monkeypatch.undo()
    assert caught.value.path == root.path
    assert left_over(root) == []
    assert store.entries() == []


def full(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_real_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, child: Callable[..., subprocess.Popen[str]]
) -> None:
    for artifact_kib in (16, 40, 48, 56, 64, 300):
        process = child("fill_disk", tmp_path, '{"a": 1}', 64, artifact_kib)
        out, err = process.communicate(timeout=60)
        results = [json.loads(line) for line in out.splitlines()]
        if results[0]["error"] == "no mount":
            pytest.skip("this user may not mount a small disk")
        assert err == ""
        expected = {None, "DiskFull"} if artifact_kib < 300 else {"DiskFull"}
        assert results[0]["error"] in expected
        assert results[1]["left"] == []


def test_a_cleanup_that_fails_is_a_warning(
    store: Store,
    root: CacheRoot,
    factors: Factors,
    publish: Callable[..., Entry],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = os.rmdir

    def busy(path: Any, *rest: Any, **more: Any) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rmdir", busy)
    entry = publish(store, factors)
    assert entry.verify() == []
    assert "could not remove" in caplog.text
    monkeypatch.setattr(os, "rmdir", real)
    publish(store, factors)
    assert left_over(root) == []


def test_a_dead_draft_is_removed_by_the_next_one_and_a_living_one_is_not(
    store: Store,
    root: CacheRoot,
    factors: Factors,
    publish: Callable[..., Entry],
    child: Callable[..., subprocess.Popen[str]],
) -> None:
    dead, living = (child("stay_in_draft", root.path, '{"a": 1}') for _ in range(2))
    for process in (dead, living):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    dead.kill()
    dead.wait()
    assert len(list(root.staging.iterdir())) == 2
    publish(store, factors)
    (left,) = root.staging.iterdir()
    assert f"-{living.pid}-" in left.name
    assert (left / "entry" / "artifacts").is_dir()


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_root_that_cannot_be_written_is_said_with_a_remedy(
    store: Store, root: CacheRoot, factors: Factors, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(RootUnusable) as caught, store.draft(factors.key):
        pass
    assert caught.value.path == root.path
    assert "--cache-root" in caught.value.remedy
    assert isinstance(caught.value, CacheError)
