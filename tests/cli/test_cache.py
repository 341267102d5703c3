"""What `cache ls` and `cache inspect` print for entries that lie on disk, sound and broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Store
from tests.cli.conftest import Run

HEADER = {
    "model": "preset:llama",
    "target": {"name": "cpu:avx2", "isa": "avx2"},
    "pieces": {"total": 61, "distinct": 3},
    "checked": True,
    "dtype": "float32",
    "command": "precompile",
    "phases": [["trace", 2.5], ["compile", 11.25]],
    "versions": {"graphkiln": "0.1.0", "torch": "2.13.0"},
    "decisions": [{"field": "cudagraph_mode", "asked": "FULL", "got": "NONE", "reason": "it is a CPU"}],
}


def publish(root: Path, model: str = "preset:llama", code: str = "one", **header: Any) -> Entry:
    """Publishes a small entry with one rank and one artifact; nothing in it can be run."""
    factors = Factors(
        env={"GRAPHKILN_CPP_FAST_MATH": False},
        config={"model": model, "block_size": 16},
        code={"functions": code},
        compiler={"torch": "2.13.0"},
    )
    with Store(CacheRoot(root)).draft(factors.key) as draft:
        artifact = draft.add_artifact({"kernel.so": b"\x7fELF" + model.encode()})
        draft.add_source("def forward(x):\n    return x\n")
        draft.add_part("0_0", "backbone", "def forward(): ...\n", {"steps": []}, [artifact])
        draft.set_rank("0_0", {}, {"kernels": [code]})
        return draft.publish({**HEADER, "model": model, **header}, factors)


@pytest.fixture
def cache(run: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Gives `cache(*words)`: a cache command on its own root; times, sizes and places are made equal."""
    root = tmp_path / "root"

    def started(*words: str) -> Run:
        done = run("cache", *words, "--cache-root", str(root))
        return Run(done.status, steady(done.out, root), steady(done.err, root))

    return started


def steady(text: str, root: Path) -> str:
    text = text.replace(str(root), "<root>")
    text = re.sub(r'"bytes": \d+', '"bytes": 0', re.sub(r"\d\.\d\d KiB", "0.00 KiB", text))
    return re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(\+00:00|Z)", "<time>", text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def break_file(entry: Entry, name: str) -> None:
    path = entry.path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_an_empty_cache_lists_nothing_and_creates_nothing(cache: Callable[..., Run], root: Path) -> None:
    assert cache("ls") == Run(0, "", "0 entries, 0 B in <root>\n")
    assert not root.exists()


def test_ls_of_sound_and_broken_entries(
    cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]
) -> None:
    publish(root)
    labelled = publish(root, model="SmolLM2-135M-Instruct", dtype="bfloat16")
    update_state(CacheRoot(root), labelled.path, label="prod", pinned=True)
    publish(root, model="preset:qwen3", ranks_expected=["0_0", "1_0"])
    break_file(publish(root, code="two"), "entry.json")
    (root / "torch_compile_cache" / "0123456789").mkdir()
    snapshot(str(cache("ls")))


def test_ls_as_json(cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]) -> None:
    publish(root)
    break_file(publish(root, code="two"), "entry.json")
    snapshot(str(cache("ls", "--json")))


def test_ls_sorts_limits_and_prints_ids(cache: Callable[..., Run], root: Path) -> None:
    first = publish(root, model="z")
    second = publish(root, model="a" * 100)
    broken = publish(root, model="b")
    break_file(broken, "entry.json")
    update_state(CacheRoot(root), first.path, last_used="2026-01-01T00:00:00+00:00")

    def ids(*words: str) -> list[str]:
        return cache("ls", "--ids", *words).out.split()

    assert ids() == [second.short, first.short, broken.short]
    assert ids("--sort", "size") == [second.short, first.short, broken.short]
    assert ids("--sort", "model") == [second.short, first.short, broken.short]
    assert ids("--sort", "used") == [first.short, second.short, broken.short]
    assert ids("--sort", "used", "--limit", "1") == [first.short]


def test_inspect_of_a_sound_entry(
    cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]
) -> None:
    entry = publish(root)
    store = Store(CacheRoot(root))
    for number in range(7):
        phases = [["load", 0.5 + number]]
        store.record_start({"key": entry.key, "outcome": "hit", "phases": phases})
    store.record_start({"key": "another", "outcome": "miss", "phases": []})
    snapshot(str(cache("inspect", entry.key[:4], "-v")))


def test_inspect_as_json(cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]) -> None:
    snapshot(str(cache("inspect", str(publish(root).path), "--json")))


def test_inspect_of_a_damaged_entry_names_the_file_and_exits_1(
    cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]
) -> None:
    entry = publish(root)
    break_file(entry, "factors.json")
    break_file(entry, "rank_0_0/backbone/graph.py")
    snapshot(str(cache("inspect", entry.short)))


def test_inspect_of_an_entry_whose_header_is_broken(cache: Callable[..., Run], root: Path) -> None:
    entry = publish(root)
    break_file(entry, "entry.json")
    done = cache("inspect", entry.short)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"error: entry {entry.short} is damaged: entry.json: ")


def test_stored_text_cannot_drive_the_terminal(cache: Callable[..., Run], root: Path) -> None:
    entry = publish(root, model="\x1b[2Jm")
    assert "\\x1b[2Jm" in cache("ls").out
    assert "\x1b" not in cache("ls").out + cache("inspect", entry.short, "-v").out


def test_inspect_of_what_is_not_there_or_not_one(cache: Callable[..., Run], root: Path) -> None:
    keys = sorted(publish(root, code=str(number)).key for number in range(17))
    assert cache("inspect", "no-such-label").status == 2
    shared = next(one[0] for one, other in pairwise(keys) if one[0] == other[0])
    done = cache("inspect", shared)
    assert done.status == 2
    assert "is not unique" in done.err


def test_a_cache_root_that_is_a_file_is_one_line_and_exit_4(run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = run("cache", "ls", "--cache-root", str(file), "--json")
    assert done.status == 4
    assert json.loads(done.out)["error"]["kind"] == "RootUnusable"
    assert done.err.count("error: ") == 1


def test_an_unknown_variable_of_ours_is_named(
    cache: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHKILN_CACHE_ROOOT", "x")
    warning = "warning: GRAPHKILN_CACHE_ROOOT is set, and no such variable is read"
    assert f"{warning}; did you mean GRAPHKILN_CACHE_ROOT" in cache("ls").err.splitlines()
    assert cache("ls", "-q").err == ""


def test_a_bad_variable_of_ours_is_bad_input(
    cache: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHKILN_LOG_LEVEL", "loud")
    done = cache("ls")
    assert done.status == 2
    assert "GRAPHKILN_LOG_LEVEL='loud' is not understood" in done.err
