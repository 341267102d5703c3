"""What `cache inspect`, `cache diff` and `explain` print, whole, at 80 columns and in a pipe."""

from __future__ import annotations

import importlib
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.factors.canonical import digest as digest_of
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.inspect.causes import Cause
from graphkiln.cache.inspect.nearest import Near
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.cli.show.causes import pair_texts
from tests.cli.conftest import Run
from tests.cli.test_cache import HEADER, steady

SOURCE = "SCALE = 2\n\n\ndef forward(x):\n    return x * SCALE\n"
GRAPH = "def piece_0(x):\n    return x * 2.0\n\ndef main(x):\n    return piece_0(x)\n"
REQUESTED = {
    "deployment": {"model": "preset:llama", "dtype": "auto", "max_num_seqs": 128, "device": None},
    "compilation": {"optimization_level": 2, "mode": None},
}


def publish(
    root: Path,
    *,
    dtype: str = "float32",
    source: str = SOURCE,
    digest: str = "1" * 64,
    graph: str = GRAPH,
    fingerprint: str = "a" * 64,
    wrapper: str = "def call(args):\n    return args\n",
    env: bool = False,
    seqs: int = 128,
    **header: Any,
) -> Entry:
    """Publishes an entry of two pieces with all that a real one holds; nothing in it can be run."""
    factors = Factors(
        env={"GRAPHKILN_CPP_FAST_MATH": env},
        config={"dtype": dtype, "max_num_seqs": seqs, "model": {"model_type": "llama"}},
        code={
            "backbone": {
                "class": "toy.Toy",
                "functions": {"toy": {"Toy.forward": digest}},
                "environment": {"TOY_KERNEL": None},
                "parameters": [
                    ["parameter", f"layers.{layer}.weight", f"torch.{dtype}", [4], [1], 0, None, None]
                    for layer in range(2)
                ],
                "values": [
                    {
                        "kind": "constant",
                        "path": [["self"], ["attr", "scale"]],
                        "value": ["i", "2"],
                        "over": ["0", "1", "2"],
                    }
                ],
            }
        },
        compiler={"torch": "2.13.0", "target": {"isa": "avx2"}},
    )
    with Store(CacheRoot(root)).draft(factors.key) as draft:
        first = draft.add_artifact({"wrapper.py": wrapper.encode(), "kernels/k.so": b"\x7fELF"})
        second = draft.add_artifact({"wrapper.py": b"def call(args): ...\n"})
        stored = draft.add_source(source)
        wiring = {
            "steps": [
                {"piece": 0, "args": [], "outs": [1]},
                {"op": "my::attention", "args": [["r", 1], ["c", ["s", "layers.0.attn"]]], "outs": [2]},
                {"piece": 1, "args": [["r", 2]], "outs": [3]},
            ],
            "pieces": [
                {"fingerprint": fingerprint, "artifact": first, "range": [1, 2048], "dynamic": "backed"},
                {"fingerprint": "b" * 64, "artifact": second, "range": [1, 2048], "dynamic": "backed"},
            ],
            "sources": {
                "toy": {"file_sha256": stored, "functions": {"Toy.forward": digest}, "stored": stored}
            },
            "door": {
                "smallest": 1,
                "largest": 2048,
                "arguments": [{"name": "x", "dtype": "torch.float32", "device": "cpu", "shape": [None, 4]}],
            },
        }  # fmt: skip
        draft.add_part("0_0", "backbone", graph, wiring, [first, second])
        build = {fingerprint: {"sources": {"wrapper.py": digest_of(wrapper)}}}
        draft.set_rank("0_0", {}, {"backbone": {"pieces": build, "isa": "avx2"}})
        return draft.publish({**HEADER, "requested": REQUESTED, **header}, factors)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def cache(run: Callable[..., Run], root: Path) -> Callable[..., Run]:
    def started(*words: str) -> Run:
        done = run("cache", *words, "--cache-root", str(root))
        out = re.sub(r"build [0-9a-f]{10}", "build <digest>", steady(done.out, root))
        return Run(done.status, re.sub(r"(build +)[0-9a-f]{64}", r"\1<digest>", out), steady(done.err, root))

    return started


def test_inspect_shows_all_on_one_screen(
    cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]
) -> None:
    entry = publish(root, versions={"torch": "2.13.0", "built in": "/home/me/venv/lib"})
    Store(CacheRoot(root)).record_start({"key": entry.key, "outcome": "hit", "phases": [["load", 0.5]]})
    done = cache("inspect", entry.short)
    assert len(done.out.splitlines()) <= 48
    snapshot(str(done))


def test_inspect_with_every_detail(
    cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]
) -> None:
    snapshot(str(cache("inspect", publish(root).short, "--all")))


@pytest.mark.parametrize("flag", ["--factors", "--pieces", "--graphs", "--source"])
def test_inspect_shows_a_detail_on_demand(flag: str, cache: Callable[..., Run], root: Path) -> None:
    entry = publish(root)
    marks = {
        "--factors": "functions.toy.Toy.forward",
        "--pieces": "kernels/k.so",
        "--graphs": "def piece_0",
        "--source": "SCALE = 2",
    }
    plain, detailed = cache("inspect", entry.short).out, cache("inspect", entry.short, flag).out
    assert marks[flag] not in plain
    assert [name for name, mark in marks.items() if mark in detailed] == [flag]


def test_diff_names_a_cause_and_groups_what_follows(
    cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]
) -> None:
    one = publish(root)
    other = publish(root, dtype="bfloat16", fingerprint="c" * 64, graph=GRAPH.replace("2.0", "2.5"))
    snapshot(str(cache("diff", one.short, other.short)))


def test_diff_of_code_shows_the_lines(
    cache: Callable[..., Run], root: Path, snapshot: Callable[[str], None]
) -> None:
    one = publish(root)
    other = publish(root, source=SOURCE.replace("x * SCALE", "x * SCALE + 1"), digest="2" * 64)
    snapshot(str(cache("diff", one.short, other.short, "--factor", "code")))


def test_diff_of_two_builds_of_one_key(
    cache: Callable[..., Run], root: Path, tmp_path: Path, snapshot: Callable[[str], None]
) -> None:
    one = publish(root)
    other = publish(tmp_path / "other", wrapper="def call(args):\n    return args[0]\n")
    snapshot(str(cache("diff", one.short, str(other.path))))
    found = json.loads(cache("diff", one.short, str(other.path), "--json").out)
    assert (found["verdict"], found["causes"]) == ("same key, different build", [])
    assert [row["name"] for row in found["build"]] == [f"0_0.backbone.pieces.{'a' * 64}.sources.wrapper.py"]


def test_diff_of_an_entry_with_itself_is_the_same(cache: Callable[..., Run], root: Path) -> None:
    entry = publish(root)
    assert cache("diff", entry.short, entry.key).status == 0
    assert json.loads(cache("diff", entry.short, entry.key, "--json").out)["verdict"] == "same"


def test_one_factor_alone_may_be_the_same(cache: Callable[..., Run], root: Path) -> None:
    one, other = publish(root), publish(root, env=True)
    assert cache("diff", one.short, other.short, "--factor", "config").status == 0
    assert cache("diff", one.short, other.short, "--factor", "env").status == 1
    assert cache("diff", one.short, other.short, "--factor", "envy").status == 2


def test_diff_of_a_damaged_entry_names_the_file(cache: Callable[..., Run], root: Path) -> None:
    one, other = publish(root), publish(root, env=True)
    (other.path / "factors.json").write_text("{}")
    done = cache("diff", one.short, other.short)
    assert done.status == 1
    assert done.err.startswith(f"error: entry {other.short} is damaged: factors.json: size")


def test_equal_texts_of_unequal_values_are_told_apart() -> None:
    for then, now in ((1, True), (1, 1.0), (1, "1"), (True, "true"), (None, "none")):
        one, other = pair_texts(then, now)
        assert one != other


def test_long_values_are_shown_where_they_differ() -> None:
    one, other = pair_texts("g++ " + "x" * 500 + " 12.2", "g++ " + "x" * 500 + " 13.1")
    assert one.endswith("x 12.2")
    assert other.endswith("x 13.1")
    assert max(len(one), len(other)) < 130


class Planted:
    """Unpickling it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_nothing_in_an_entry_is_unpickled_or_imported(
    cache: Callable[..., Run], root: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')\n"
    one = publish(root, source=code, wrapper=code, graph=code)
    other = publish(root, env=True)
    for entry in (one, other):
        for name in ("planted.pkl", "rank_0_0/backbone/model", "artifacts/sitecustomize.py"):
            (entry.path / name).write_bytes(
                pickle.dumps(Planted(marker)) if name[-1] != "y" else code.encode()
            )
    for words in (
        ["ls"],
        ["ls", "--filter", "code.module~toy"],
        ["inspect", one.short, "--all"],
        ["inspect", one.short, "--json"],
        ["diff", one.short, other.short, "--all"],
    ):
        assert cache(*words).status in (0, 1)
    assert not marker.exists()


def test_an_entry_is_read_wherever_it_lies_and_values_like_paths_are_shown(
    cache: Callable[..., Run], root: Path, tmp_path: Path
) -> None:
    entry = publish(root, versions={"python": "/opt/python/bin/python3"})
    moved = tmp_path / "moved" / entry.short
    moved.parent.mkdir()
    entry.path.rename(moved)
    found = json.loads(cache("inspect", str(moved), "--json").out)
    assert found["paths"] == [{"where": "header.versions.python", "value": "/opt/python/bin/python3"}]
    assert found["faults"] == []
    assert [piece["uses"] for piece in found["pieces"]] == [["start"], ["layers.0.attn"]]
    assert found["guards"] == {"constant": 3, "parameter": 2, "function": 1, "variable": 1}


DTYPE = Difference("config", "dtype", "float32", "bfloat16", remedy="--dtype float32")
WEIGHT = Difference("code", "parameter w dtype", "torch.float32", "torch.bfloat16", remedy="compile again")
SEQS = Difference("config", "max_num_seqs", 128, 64, relevant=False, remedy="--max-num-seqs 128")
BYPASS = Difference("compiler", "not cacheable", None, "option x holds a Toy", kind="cannot verify")
NEAR = Near("3f3f3f3f3f", "3f" * 32, "/cache/3f3f3f3f3f", "preset:llama", "2020-01-01T00:00:00+00:00",
            (Cause(DTYPE, (WEIGHT,)), Cause(SEQS)))  # fmt: skip
ANSWERS: dict[str, tuple[int, dict[str, Any]]] = {
    "hit": (0, {"key": "3f" * 32, "entry": "3f3f3f3f3f", "saves": 44.4, "entries": 3}),
    "miss": (1, {"nearest": (NEAR,), "assumed": ("the code is known from sources alone",), "entries": 3}),
    "unknown": (3, {"entry": "3f3f3f3f3f", "assumed": ("its functions are unchanged",), "entries": 1}),
    "bypass": (1, {"reasons": (BYPASS,)}),
}


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("outcome", ANSWERS)
def test_explain_prints(
    outcome: str,
    words: list[str],
    run: Callable[..., Run],
    snapshot: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explaining = importlib.import_module("graphkiln.core.explain")
    status, facts = ANSWERS[outcome]
    answer = explaining.Explanation(outcome, "cpu:avx2", Path("/cache"), "a1" * 32, **facts)
    monkeypatch.setattr(explaining, "explain", lambda *_, **__: answer)
    done = run("explain", "preset:llama", "-q", *words)
    assert done.status == status
    assert all(len(line) <= 80 for line in done.out.splitlines())
    snapshot(re.sub(r"\d+ d ago", "<age>", str(done)))
