"""A process of its own for the tests: `child.py ACTION ARGUMENTS...`, with "ready" and results on stdout."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

# Before rights are dropped: what it imports may lie where another user cannot read.
import filelock  # noqa: F401

from graphkiln.cache.errors import CacheError
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.inspect.verify import verify_entries
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.ledger import append_start
from graphkiln.cache.store.locks import build_lock
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store

UNPRIVILEGED = 54321
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def main(action: str, *arguments: str) -> None:
    globals()[f"do_{action}"](*arguments)


def do_publish(root: str, config: str, fill: str, megabytes: str = "1") -> None:
    """Wait for a line, then publish; print the key that the caller may rely on."""
    store = Store(CacheRoot(Path(root)))
    factors = Factors({}, json.loads(config), {}, {})
    say("ready")
    sys.stdin.readline()
    with store.draft(factors.key) as draft:
        artifact = draft.add_artifact({f"{n}.so": fill.encode() * (1 << 20) for n in range(int(megabytes))})
        draft.add_part("0_0", "backbone", "", {"fill": fill}, [artifact])
        draft.set_rank("0_0", {}, {})
        entry = draft.publish({}, factors)
    say(json.dumps({"key": entry.key, "fill": entry.read_json("0_0", "backbone", "wiring.json")["fill"]}))


def do_hold(root: str, name: str, note: str) -> None:
    """Hold a lock until a line comes or somebody kills this process."""
    with build_lock(CacheRoot(Path(root)), name, 10, note):
        say("ready")
        sys.stdin.readline()
    say("released")


def do_stay_in_draft(root: str, config: str) -> None:
    factors = Factors({}, json.loads(config), {}, {})
    with Store(CacheRoot(Path(root))).draft(factors.key) as draft:
        draft.add_artifact({"x": b"x"})
        say("ready")
        sys.stdin.readline()


def do_notes(root: str, count: str, cap: str) -> None:
    """Wait for a line, then note starts; print the numbers of those that were noted."""
    place = CacheRoot(Path(root))
    say("ready")
    sys.stdin.readline()
    pid = os.getpid()
    say(json.dumps([n for n in range(int(count)) if append_start(place, {"n": n, "pid": pid}, int(cap))]))


def do_read(root: str, lookup: str) -> None:
    """Read a whole entry as a start would, as a user without any right to write."""
    become_unprivileged()
    store = Store(CacheRoot(Path(root)))
    (entry,) = store.find(lookup)
    manifest = entry.manifest("0_0")
    for artifact in manifest.artifacts:
        entry.artifact_dir(artifact)
    result = {
        "faults": [fault.kind for fault in entry.verify()],
        "config": entry.factors().as_json()["config"],
        "wiring": entry.read_json("0_0", "backbone", "wiring.json"),
        "recorded": store.record_start({"outcome": "hit"}),
        "set_aside": store.set_aside(entry, {"why": "a try"}),
    }
    say(json.dumps(result))


def do_verify(entry: str) -> None:
    """Verify an entry as a user without rights; print file and kind of each fault."""
    become_unprivileged()
    [verdict] = verify_entries([Path(entry)])
    say(json.dumps([[fault.file, fault.kind] for fault in verdict.faults]))


def do_write(root: str, config: str) -> None:
    """Try to publish as a user without rights; print the error's type and text."""
    become_unprivileged()
    attempt(lambda: do_publish_now(root, config, 1))


def do_fill_disk(mount: str, config: str, free_kib: str, artifact_kib: str) -> None:
    """Publish on a disk of the given size, in a mount namespace of this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    private = libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    if private or libc.mount(b"none", mount.encode(), b"tmpfs", 0, f"size={free_kib}k".encode()):
        say(json.dumps({"error": "no mount"}))
        return
    attempt(lambda: do_publish_now(mount, config, int(artifact_kib)))
    staging = Path(mount, "staging")
    say(json.dumps({"left": os.listdir(staging) if staging.exists() else []}))


def do_publish_now(root: str, config: str, artifact_kib: int) -> Entry:
    factors = Factors({}, json.loads(config), {}, {})
    with Store(CacheRoot(Path(root))).draft(factors.key) as draft:
        artifact = draft.add_artifact({"x.so": b"x" * (artifact_kib << 10)})
        draft.add_part("0_0", "backbone", "", {}, [artifact])
        draft.set_rank("0_0", {}, {})
        return draft.publish({}, factors)


def attempt(action: Any) -> None:
    try:
        say(json.dumps({"error": None, "path": str(action().path)}))
    except CacheError as error:
        say(json.dumps({"error": type(error).__name__, "text": str(error)}))


def become_unprivileged() -> None:
    # After the imports: the interpreter itself may lie where only its owner can read.
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
