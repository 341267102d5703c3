"""Locks end with their holder, waiting ends with the limit, and the holder is named."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.errors import LockTimeout
from graphkiln.cache.store.locks import build_lock, owned_lock
from graphkiln.cache.store.root import CacheRoot

Start = Callable[..., subprocess.Popen[str]]


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()


def test_a_waiter_that_reaches_the_limit_names_the_holder(root: CacheRoot, child: Start) -> None:
    holder = child("hold", root.path, "build", "compiling tiny")
    ready(holder)
    started = time.monotonic()
    with pytest.raises(LockTimeout) as caught, build_lock(root, "build", 0.3):
        pass
    assert time.monotonic() - started > 0.25
    assert caught.value.path == root.locks / "build.lock"
    assert caught.value.waited_s == 0.3
    for fact in (f"pid {holder.pid}", os.uname().nodename, "compiling tiny"):
        assert fact in caught.value.holder


def test_the_lock_of_a_killed_holder_is_free_at_once(root: CacheRoot, child: Start) -> None:
    holder = child("hold", root.path, "build", "")
    ready(holder)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (root.locks / "build.lock").exists()
    with build_lock(root, "build", 1):
        pass


def test_a_waiter_goes_on_when_the_holder_lets_go(root: CacheRoot, child: Start) -> None:
    holder = child("hold", root.path, "build", "")
    ready(holder)
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    with build_lock(root, "build", 10):
        assert not list(root.locks.glob("*.holder")) or "pid" in (root.locks / "build.holder").read_text()


def test_an_old_lock_file_means_nothing(root: CacheRoot) -> None:
    root.ensure()
    (root.locks / "build.lock").write_text("left by a process that is long gone")
    (root.locks / "build.holder").write_text("not json")
    with build_lock(root, "build", 0.1):
        pass


def test_a_holder_that_left_no_name_is_still_a_timeout(root: CacheRoot, child: Start) -> None:
    ready(child("hold", root.path, "build", ""))
    (root.locks / "build.holder").write_text("[]")
    with pytest.raises(LockTimeout, match="left no name"), build_lock(root, "build", 0.1):
        pass


def test_locks_of_other_names_are_independent(root: CacheRoot) -> None:
    with build_lock(root, "one", 0.1), build_lock(root, "two", 0.1):
        assert sorted(path.name for path in root.locks.glob("*.lock")) == ["one.lock", "two.lock"]
    assert not list(root.locks.glob("*.holder"))


def test_the_lock_is_free_after_an_error(root: CacheRoot) -> None:
    with pytest.raises(ZeroDivisionError), build_lock(root, "build", 0.1):
        raise ZeroDivisionError
    with build_lock(root, "build", 0.1):
        pass


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 300])
def test_a_name_that_could_lead_elsewhere_is_refused(root: CacheRoot, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"), build_lock(root, name, 0.1):
        pass
    assert not root.path.exists()


def test_an_owned_lock_leaves_no_file(tmp_path: Path) -> None:
    with owned_lock(tmp_path / "mine.lock") as got:
        assert got
        with owned_lock(tmp_path / "mine.lock") as again:
            assert not again
    assert list(tmp_path.iterdir()) == []
