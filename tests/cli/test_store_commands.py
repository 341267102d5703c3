"""What the commands that keep a cache in order print and do: whole outputs at 80 columns."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.inspect.catalogue import scan
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.state import update_state
from graphkiln.cache.store.store import Store
from graphkiln.cache.store.trash import discarded
from tests.cache.inspect.made import cache_at, make_entry, note_use
from tests.cli.conftest import Run

Cache = Callable[..., Run]
Snapshot = Callable[[str], None]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return cache_at(tmp_path / "root")


@pytest.fixture
def cache(run: Callable[..., Run], store: Store) -> Cache:
    """Gives `cache(*words)`: a cache command on its own root; what changes from run to run is made equal."""

    def started(*words: str) -> Run:
        done = run("cache", *words, "--cache-root", str(store.root.path))
        return Run(done.status, steady(done.out, store), steady(done.err, store))

    return started


def steady(text: str, store: Store) -> str:
    text = text.replace(str(store.root.path), "<root>")
    text = re.sub(r"\d{8}T\d{6}Z(-\d+)?", "<time>", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(\+00:00|Z)", "<time>", text)
    return re.sub(r"\d\.\d\d KiB", "0.00 KiB", text)


def three(store: Store) -> tuple[Entry, Entry, Entry]:
    """An old one, a used one, and one with a damaged wiring."""
    old = make_entry(store, "one", age_days=40, model="llama")
    used = make_entry(store, "two", age_days=20, model="qwen3", dtype="bfloat16")
    note_use(used, 2)
    damaged = make_entry(store, "three", age_days=1, model="llama", dtype="float16")
    (damaged.path / "rank_0_0" / "backbone" / "wiring.json").write_bytes(b"{}")
    return old, used, damaged


def test_verify_names_what_is_wrong_and_exits_1(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    three(store)
    make_entry(store, "four", header={"ranks_expected": ["0_0", "1_0"]})
    snapshot(str(cache("verify")))


def test_verify_of_a_sound_cache(cache: Cache, store: Store) -> None:
    entry = make_entry(store)
    assert cache("verify") == Run(0, "", "1 entry, 8 files, 0.00 KiB: all sound in <root>\n")
    assert cache("verify", entry.short, "-q") == Run(0, "", "")
    assert cache("verify", str(entry.path)).status == 0
    assert (
        cache("verify", "--filter", "model=none").err
        == "0 entries, 0 files, 0 B: nothing to verify in <root>\n"
    )


def test_verify_as_json(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    three(store)
    snapshot(str(cache("verify", "--filter", "status=broken", "--json")))


def test_verify_is_told_of_the_surroundings(cache: Cache, store: Store) -> None:
    make_entry(store)
    os.chmod(store.root.cache, 0o777)
    done = cache("verify")
    assert done.status == 0
    assert done.out == "around the cache: <root>/torch_compile_cache can be written by everybody\n"


def test_repair_and_restore(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    _, used, damaged = three(store)
    (used.path / "core.17").write_text("")
    outputs = [
        cache("verify", "--repair"),
        cache("verify"),
        cache("restore"),
        cache("restore", damaged.short),
    ]
    snapshot("\n".join(map(str, outputs)))
    assert store.set_aside(used, {"reason": "a mistake"})
    assert cache("restore", used.short) == Run(0, f"{used.short} is back\n", "")
    listed = json.loads(cache("restore", "--json").out)["quarantine"]
    assert {item["moved"] for item in listed} == {damaged.short, "core.17"}


def test_prune_prints_the_plan_and_removes_nothing(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    old, used, damaged = three(store)
    update_state(store.root, used.path, label="prod")
    snapshot(str(cache("prune", "--older-than", "7d", "--broken")))
    assert {row.id for row in scan(store).rows} == {old.short, used.short, damaged.short}


def test_prune_with_yes_removes_and_the_grace_keeps(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    three(store)
    outputs = [
        cache("prune", "--max-files", "14", "--yes"),
        cache("prune", "--unused-since", "1d", "--yes", "--grace", "0"),
        cache("prune", "--unused-since", "1d", "--yes"),
    ]
    snapshot("\n".join(map(str, outputs)))
    assert scan(store).rows == ()
    assert discarded(store.root) == []


@pytest.mark.parametrize(
    ("answer", "goes"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_a_terminal_is_asked(
    cache: Cache, store: Store, monkeypatch: pytest.MonkeyPatch, answer: str, goes: bool
) -> None:
    three(store)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    done = cache("prune", "--older-than", "30d")
    assert "remove them? [y/N] " in done.err
    assert len(scan(store).rows) == (2 if goes else 3)


def test_prune_as_json_is_the_plan_and_what_was_done(cache: Cache, store: Store) -> None:
    old, _, _ = three(store)
    done = cache("prune", "--older-than", "30d", "--json")
    facts = json.loads(done.out)
    assert (facts["schema"], facts["command"], facts["removed"]) == (1, "cache prune", None)
    assert [item["id"] for item in facts["remove"]] == [old.short]
    assert facts["bytes"] == sum(item["bytes"] for item in facts["remove"])
    facts = json.loads(cache("prune", "--older-than", "30d", "--json", "--yes", "--grace", "0").out)
    assert facts["removed"]["moved"] == [old.short]
    assert facts["removed"]["deleted_files"] == facts["files"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "prune needs a rule"),
        (["--older-than", "soon"], "--older-than takes a number and s, m, h, d or w, not 'soon'"),
        (["--max-size", "7d"], "--max-size takes a number and B, KB, MB, GB"),
        (["--grace", "x", "--broken"], "--grace takes"),
        (["--filter", "siez>1"], "filter 'siez>1': no name 'siez'"),
        (["--stale", "weather"], "'weather' is not one of"),
        (["--keep-last", "-1"], "--keep-last"),
    ],
)
def test_bad_usage_of_prune_is_one_line_and_exit_2(
    cache: Cache, store: Store, words: list[str], says: str
) -> None:
    make_entry(store)
    done = cache("prune", *words)
    assert (done.status, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("error: ") == 1
    assert len(done.err.splitlines()) <= 2


def test_prune_of_what_env_made_stale(cache: Cache, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_entry(store, env=True)
    make_entry(store)
    done = cache("prune", "--stale", "env", "--json")
    assert [(item["id"], item["reason"]) for item in json.loads(done.out)["remove"]] == [
        (other.short, "env: GRAPHKILN_CPP_FAST_MATH was True")
    ]
    monkeypatch.setenv("GRAPHKILN_CPP_FAST_MATH", "1")
    assert other.short not in cache("prune", "--stale", "env").out


def test_rm(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    old, used, damaged = three(store)
    update_state(store.root, old.path, pinned=True)
    update_state(store.root, used.path, label="prod")
    outputs = [
        cache("rm", old.short),
        cache("rm", "prod"),
        cache("rm", "prod", damaged.short, "--yes", "--grace", "0"),
        cache("rm", "prod"),
    ]
    snapshot("\n".join(map(str, outputs)))
    assert [row.id for row in scan(store).rows] == [old.short]


def test_rm_of_what_is_not_ours_is_refused(cache: Cache, store: Store) -> None:
    entry = make_entry(store)
    (entry.path / "notes.txt").write_text("mine")
    (store.root.cache / "0123456789").mkdir()
    assert "holds notes.txt, not ours" in cache("rm", entry.short, "--yes").err
    assert "is nothing of graphkiln's" in cache("rm", "0123456789", "--yes").err
    assert (store.root.cache / "0123456789").exists()


def test_pin_unpin_and_label(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    one, two = make_entry(store, "one"), make_entry(store, "two")
    outputs = [
        cache("pin", one.short),
        cache("label", one.short, "prod"),
        cache("label", two.short, "prod"),
        cache("unpin", "prod"),
        cache("label", two.short, "abc123"),
        cache("label", two.short, "no spaces"),
        cache("label", "prod"),
        cache("pin", "prod"),
    ]
    snapshot("\n".join(map(str, outputs)))


def test_a_mark_that_cannot_be_written_is_exit_4(cache: Cache, store: Store) -> None:
    entry = make_entry(store)
    os.rmdir(store.root.staging)
    store.root.staging.write_text("a file where a folder should be")
    done = cache("pin", entry.short)
    assert (done.status, done.out) == (4, "")
    assert done.err == f"error: the state of {entry.short} cannot be written in <root>\n"


def test_dir_and_size(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    assert cache("dir") == Run(0, "<root>\n", "chosen by the argument\n")
    assert not store.root.path.exists()
    assert json.loads(cache("dir", "--json").out)["exists"] is False
    old, used, _ = three(store)
    store.set_aside(old, {"reason": "a try"})
    store.discard(used)
    snapshot(str(cache("size")))
    assert json.loads(cache("size", "--json").out)["trash"]["count"] == 1


STARTS = (
    {
        "outcome": "compiled",
        "key": "a" * 64,
        "phases": [["trace", 2.5], ["compile", 11.25], ["publish", 0.001]],
    },
    {"outcome": "hit", "key": "a" * 64, "phases": [["load", 0.25]]},
    {
        "outcome": "miss",
        "key": None,
        "phases": [["plan", 0.5]],
        "reasons": [{"factor": "config", "name": "dtype", "then": "float32", "now": "bfloat16"}],
    },
    {
        "outcome": "compiled",
        "key": "b" * 64,
        "phases": [["compile", 9.0]],
        "reasons": [
            {"factor": "code", "name": "entry bbbbbbbbbb", "then": "sound", "now": "graph.py: digest"}
        ],
    },
    {
        "outcome": "bypass",
        "key": None,
        "phases": "none",
        "reasons": [7, {"factor": "code", "name": "not cacheable"}],
    },
)


def test_starts(cache: Cache, store: Store, snapshot: Snapshot) -> None:
    make_entry(store)
    for start in STARTS:
        about = {"command": "warm", "model": "preset:llama", "pid": 4711, "host": "node-3"}
        assert store.record_start({**about, **start})
    snapshot(str(cache("starts")))
    assert cache("starts", "--filter", "outcome=rejected").err == "1 start: 1 rejected\n"
    assert cache("starts", "--filter", "outcome!=hit and model~llama", "--limit", "1").err.startswith(
        "4 starts: "
    )
    facts = json.loads(cache("starts", "--json", "--filter", "key=aaaa").out)
    assert [start["outcome"] for start in facts["starts"]] == ["hit", "compiled"]


def test_starts_of_no_ledger_and_a_bad_filter(cache: Cache, store: Store) -> None:
    assert cache("starts") == Run(0, "", "0 starts\n")
    make_entry(store)
    store.record_start({"outcome": "hit"})
    for text in ("outcome=fine", "weather=rain", "outcome>hit"):
        assert cache("starts", "--filter", text).status == 2


def test_a_folder_that_a_deployment_named_is_a_cache_too(run: Callable[..., Run], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    entry = make_entry(Store(cache_at(tmp_path / "root").root, folder))
    assert entry.path.parent == folder
    for words in (["verify"], ["pin", entry.short], ["unpin", entry.short], ["rm", entry.short, "--yes"]):
        assert run("cache", *words, "--cache-root", str(folder)).status == 0
    assert [path.name for path in folder.iterdir()] == [".graphkiln"]
    assert len(discarded(Store(cache_at(tmp_path / "root").root, folder).root)) == 1


def test_a_start_that_loaded_some_pieces_and_compiled_others_is_partial(cache: Cache, store: Store) -> None:
    make_entry(store)
    store.record_start({"outcome": "compiled", "counts": {"artifacts_loaded": 2, "kernels_compiled": 1}})
    assert cache("starts", "--filter", "outcome=partial").err == "1 start: 1 partial\n"


@pytest.mark.parametrize(
    "command", ["verify", "restore", "prune", "rm", "pin", "unpin", "label", "starts", "dir", "size"]
)
def test_help(run: Callable[..., Run], snapshot: Snapshot, command: str) -> None:
    snapshot(str(run("cache", command, "--help")))
