"""Publication is one rename: whoever races, dies or finds damage, one sound entry comes out."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.errors import KeyPrefixCollision
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store

Start = Callable[..., subprocess.Popen[str]]
Publish = Callable[..., Entry]


def quarantined(root: CacheRoot) -> list[Path]:
    return sorted(root.quarantine.iterdir()) if root.quarantine.exists() else []


def reasons(root: CacheRoot) -> list[dict[str, object]]:
    return [json.loads((folder / "reason.json").read_text())["reason"] for folder in quarantined(root)]


def leftovers(root: CacheRoot) -> list[Path]:
    return [*root.staging.iterdir(), *root.locks.glob("draft-*"), *root.locks.glob("*.holder")]


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def test_a_sound_entry_of_the_key_wins(
    store: Store, root: CacheRoot, factors: Factors, publish: Publish
) -> None:
    first = publish(store, factors)
    second = publish(store, factors, kernel=b"another build")
    assert second.path == first.path
    assert second.created == first.created
    assert second.verify() == []
    assert quarantined(root) == leftovers(root) == []


def test_racing_processes_agree_on_one_entry(root: CacheRoot, child: Start) -> None:
    processes = [child("publish", root.path, '{"race": 1}', fill) for fill in "abcdefgh"]
    for process in processes:
        wait_ready(process)
    for process in processes:
        go(process)
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, results
    assert len({out for out, _ in results}) == 1
    (entry,) = Store(root).entries()
    assert isinstance(entry, Entry)
    assert entry.verify() == []
    assert quarantined(root) == leftovers(root) == []


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_nothing_that_another_trips_over(
    root: CacheRoot, child: Start
) -> None:
    """Rounds of writers of one key, one killed at a random moment: absent or whole, and no stray files."""
    moments = random.Random(7)
    for number in range(20):
        config = json.dumps({"round": number})
        victim, other = (child("publish", root.path, config, fill, 4) for fill in "vo")
        for process in (victim, other):
            wait_ready(process)
        go(victim)
        time.sleep(moments.random() * 0.06)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        factors = Factors({}, {"round": number}, {}, {})
        seen = Store(root).find(factors.lookup)
        assert all(entry.verify() == [] for entry in seen)
        go(other)
        out, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["fill"] == ("v" if seen else "o")
        (entry,) = Store(root).find(factors.lookup)
        assert entry.verify() == []
    assert quarantined(root) == leftovers(root) == []


@pytest.mark.parametrize(
    "name", ["entry.json", "factors.json", "artifacts", "rank_0_0/backbone/wiring.json", "source"]
)
def test_a_damaged_entry_is_set_aside_once_and_replaced(
    store: Store, root: CacheRoot, factors: Factors, publish: Publish, name: str
) -> None:
    path = publish(store, factors).path / name
    file = path if path.is_file() else next(found for found in path.rglob("*") if found.is_file())
    file.write_bytes(b"")
    entry = publish(store, factors)
    assert entry.verify() == []
    (folder,) = quarantined(root)
    assert folder.name.startswith(f"{entry.short}-")
    assert (folder / entry.short / file.relative_to(entry.path)).read_bytes() == b""
    (reason,) = reasons(root)
    assert file.relative_to(entry.path).as_posix() in str(reason["faults"])
    publish(store, factors)
    assert len(quarantined(root)) == 1


@pytest.mark.parametrize("plant", ["link", "file", "empty folder"])
def test_whatever_else_has_the_name_is_moved_away_and_not_followed(
    store: Store, root: CacheRoot, factors: Factors, publish: Publish, tmp_path: Path, plant: str
) -> None:
    root.ensure()
    place = root.cache / factors.short
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("x")
    if plant == "link":
        place.symlink_to(tmp_path / "victim")
    elif plant == "file":
        place.write_text("")
    else:
        place.mkdir()
    entry = publish(store, factors)
    assert entry.verify() == []
    assert not entry.path.is_symlink()
    assert os.listdir(tmp_path / "victim") == ["precious"]
    assert len(quarantined(root)) == 1


def test_another_key_under_the_same_digits_is_named(
    store: Store,
    root: CacheRoot,
    factors: Factors,
    other_factors: Callable[..., Factors],
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("factors.key", "store.entries", "store.publish"):
        monkeypatch.setattr(f"graphkiln.cache.{module}.SHORT_DIGITS", 1)
    others = (other_factors(code={"other": n}) for n in range(1000))
    stranger = publish(store, next(other for other in others if other.short == factors.short))
    with pytest.raises(KeyPrefixCollision) as caught:
        publish(store, factors)
    assert (caught.value.wanted_key, caught.value.found_key) == (factors.key, stranger.key)
    assert stranger.verify() == []
    assert leftovers(root) == []


BOTH_RANKS = {"ranks_expected": ["0_0", "1_0"]}


class TestRanks:
    def test_a_missing_rank_is_added_to_a_sound_entry(
        self, store: Store, root: CacheRoot, factors: Factors, publish: Publish
    ) -> None:
        first = publish(store, factors, ("0_0",), BOTH_RANKS)
        entry = publish(store, factors, ("1_0",), BOTH_RANKS)
        assert entry.created == first.created
        assert entry.complete
        assert entry.verify() == []
        assert quarantined(root) == leftovers(root) == []
        kernels = list(entry.path.rglob("kernel.so"))
        assert len(kernels) == 1, "an artifact that both ranks use is stored once"

    def test_a_damaged_rank_is_replaced_alone(
        self, store: Store, root: CacheRoot, factors: Factors, publish: Publish
    ) -> None:
        first = publish(store, factors, ("0_0", "1_0"))
        (first.path / "rank_1_0" / "manifest.json").write_bytes(b"")
        entry = publish(store, factors, ("1_0",), BOTH_RANKS)
        assert entry.created == first.created
        assert entry.verify() == []
        (folder,) = quarantined(root)
        assert sorted(os.listdir(folder)) == ["rank_1_0", "reason.json"]

    def test_a_damaged_shared_artifact_is_replaced_for_all(
        self, store: Store, root: CacheRoot, factors: Factors, publish: Publish
    ) -> None:
        first = publish(store, factors, ("0_0", "1_0"))
        next(first.path.rglob("kernel.so")).write_bytes(b"damaged")
        assert first.verify("0_0") != []
        entry = publish(store, factors, ("1_0",), BOTH_RANKS)
        assert entry.verify() == []
        assert entry.verify("0_0") == []

    def test_a_rank_that_is_there_stays(self, store: Store, factors: Factors, publish: Publish) -> None:
        first = publish(store, factors, ("0_0", "1_0"))
        before = first.manifest("0_0").files
        entry = publish(store, factors, ("0_0",), BOTH_RANKS, kernel=b"another build")
        assert entry.manifest("0_0").files == before
        assert entry.verify() == []


def test_a_copy_made_elsewhere_is_an_entry_there(
    store: Store, root: CacheRoot, factors: Factors, publish: Publish, tmp_path: Path
) -> None:
    publish(store, factors)
    shutil.copytree(root.path, tmp_path / "copy")
    shutil.rmtree(root.path)
    (entry,) = Store(CacheRoot(tmp_path / "copy")).find(factors.lookup)
    assert entry.verify() == []
    for artifact in entry.manifest("0_0").artifacts:
        assert entry.artifact_dir(artifact).is_relative_to(tmp_path / "copy")
