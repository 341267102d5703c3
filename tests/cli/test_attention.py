"""The attention kernels of an entry, as `cache inspect` shows them and `cache diff` names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.cache.factors.canonical import canonical_json, digest
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.inspect.attention import ATTENTION_OP
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.manifest import ATTENTION_TABLE as TABLE
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.core.compile.sealed_attention import FORMAT
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.specialisations import LayerDtypes, Specialisation, reachable
from tests.cli.conftest import Run
from tests.cli.test_cache import HEADER

BF16 = torch.bfloat16
LAYER = AttentionLayer("full", heads=4, kv_heads=2, head_size=16, value_size=16, scale=0.25)
PARTS = ("one", "two")
LAYERS = (LAYER, replace(LAYER, name="equal"))
Cache = Callable[..., Run]


def kernels(block_size: int = 16, layers: tuple[AttentionLayer, ...] = LAYERS) -> list[dict[str, Any]]:
    """Gives the table of what steps of a deployment can ask for, as it stands in an artifact."""
    wanted = reachable([(one, LayerDtypes.all_of(BF16)) for one in layers], BF16, block_size, 100, 132)
    return [row(one, number) for number, one in enumerate(wanted)]


def row(one: Specialisation, number: int) -> dict[str, Any]:
    launch = {"shared": 64, "registers": 20, "nulls": 2, "types": "Oi", "arguments": ["tensor", "count"]}
    return {**one.as_json(), **launch, "cubin": f"kernels/{number}.cubin"}


def publish(
    root: Path,
    rows: list[dict[str, Any]] | None,
    block_size: int = 16,
    table: bytes | None = None,
    steps: Sequence[Any] = (),
) -> Entry:
    """Publishes an entry for a GPU of two parts, with attention beside them if there are `rows`."""
    factors = Factors(
        env={},
        config={"block_size": block_size},
        code={prefix: {} for prefix in PARTS},
        compiler={"target": {"device": "cuda", "gpu": "NVIDIA H200"}},
    )
    with Store(CacheRoot(root)).draft(factors.key) as draft:
        piece = draft.add_artifact({"wrapper.py": b"def call(args): ...\n"})
        wiring: dict[str, Any] = {"pieces": [{"artifact": piece}], "steps": [*steps]}
        used, build = [piece], {}
        if rows is not None:
            table = table or canonical_json({"format": FORMAT, "kernels": rows})
            files: dict[str, bytes | Path] = {one["cubin"]: one["cubin"].encode() * 90 for one in rows}
            used.append(draft.add_artifact({TABLE: table, **files}))
            wiring["attention"] = {"artifact": used[-1], "dtypes": {"full": [], "equal": []}}
            build = {"attention": {"sources": {TABLE: digest(table.decode())}, "triton": "triton 3.7.1"}}
        for prefix in PARTS:
            draft.add_part("0_0", prefix, "def forward(): ...\n", wiring, used)
        draft.set_rank("0_0", {}, {prefix: build for prefix in PARTS})
        return draft.publish({**HEADER, "target": {"name": "h200", "device": "cuda"}}, factors)


@pytest.fixture
def cache(run: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: run("cache", *words, "--cache-root", str(tmp_path / "a"))


def attention_lines(done: Run) -> list[str]:
    lines = done.out.splitlines()
    return [" ".join(line.split()) for line in lines if "_kernel" in line or line.startswith("attention")]


def differing(done: Run) -> dict[str, tuple[Any, Any]]:
    return {one["name"]: (one["then"], one["now"]) for one in json.loads(done.out)["build"]}


def test_an_entry_says_what_it_launches_for_attention(cache: Cache, tmp_path: Path) -> None:
    entry = publish(tmp_path / "a", kernels())
    assert attention_lines(cache("inspect", entry.short)) == [
        "attention 5 kernels for 2 layers and 3 kinds of step (prefill, decode with split keys, decode), "
        "8.59 KiB: 3 attend_kernel, 1 join_kernel, 1 write_kernel"
    ]
    assert attention_lines(cache("inspect", entry.short, "--pieces"))[1:] == [
        "attention step size registers tensors",
        "write_kernel every step 1.32 KiB 20 bfloat16, int64",
        "attend_kernel prefill 1.32 KiB 20 bfloat16, int64",
        "attend_kernel decode with split keys 1.32 KiB 20 bfloat16, float32, int64",
        "join_kernel decode with split keys 1.32 KiB 20 float32, bfloat16, int64",
        "attend_kernel decode 1.32 KiB 20 bfloat16, int64",
    ]
    (told,) = json.loads(cache("inspect", entry.short, "--json").out)["attention"]
    assert (told["layers"], len(told["kernels"]), told["size"] >> 10) == (["equal", "full"], 5, 8)
    assert told["steps"] == ["prefill", "decode with split keys", "decode"]


def test_attention_that_an_entry_for_a_gpu_does_not_bring_is_said(cache: Cache, tmp_path: Path) -> None:
    steps = [{"op": f"{ATTENTION_OP}.default", "args": [["r", 1], ["c", ["s", name]]]} for name in "ab"]
    entry = publish(tmp_path / "a", None, steps=steps[:1])
    assert attention_lines(cache("inspect", entry.short)) == [
        "attention 2 layers, whose kernels are not in the entry"
    ]
    other = publish(tmp_path / "b", kernels())
    found = differing(cache("diff", entry.short, str(other.path), "--json"))
    assert found["0_0.attention"] == (None, "5 kernels")


def test_an_entry_without_attention_says_nothing_of_it(cache: Cache, tmp_path: Path) -> None:
    entry = publish(tmp_path / "a", None)
    assert attention_lines(cache("inspect", entry.short)) == []
    assert json.loads(cache("inspect", entry.short, "--json").out)["attention"] == []


@pytest.mark.parametrize("table", [b"{}", b'{"format":1,"kernels":[7]}', b'{"format":1,"kernels":[{}]}'])
def test_a_table_of_another_form_is_said_and_told_apart_by_digest(
    table: bytes, cache: Cache, tmp_path: Path
) -> None:
    one, other = publish(tmp_path / "a", [], table=table), publish(tmp_path / "b", kernels())
    assert attention_lines(cache("inspect", one.short)) == [
        f"attention kernels for 2 layers, {len(table)} B, in a form that is not known here"
    ]
    assert list(differing(cache("diff", one.short, str(other.path), "--json"))) == [
        f"0_0.{part}.attention.sources.{TABLE}" for part in ("one", "two")
    ]


def test_a_damaged_table_hides_no_other_line(cache: Cache, tmp_path: Path) -> None:
    entry = publish(tmp_path / "a", kernels())
    (path,) = entry.path.glob(f"artifacts/*/{TABLE}")
    path.write_bytes(b"{}")
    done = cache("inspect", entry.short)
    assert (done.status, attention_lines(done)) == (1, [])
    assert TABLE in done.out


def test_other_attention_is_told_by_kernel_and_fact(cache: Cache, tmp_path: Path) -> None:
    one = publish(tmp_path / "a", kernels(16), 16)
    other = publish(tmp_path / "a", kernels(32), 32)
    done = cache("diff", one.short, other.short, "--all")
    assert "0_0.attention.3 kernels.BLOCK_SIZE  16  32" in done.out
    # The size of a block is a number in the code of attention, whatever the pieces are.
    assert "can change generated code\n   as in A  --block-size 16\n   follows  attention\n" in done.out


def test_a_kernel_of_one_side_alone_is_named_and_not_spelled_out(cache: Cache, tmp_path: Path) -> None:
    rows = kernels(layers=(*LAYERS, replace(LAYER, name="near", window=7)))
    more = [row for row in kernels(layers=LAYERS) if row["constants"].get("SPLIT") is not False]
    for row in rows:
        row["registers"] += row["kernel"] == "write_kernel"
    one, other = publish(tmp_path / "a", rows), publish(tmp_path / "b", more)
    found = differing(cache("diff", one.short, str(other.path), "--json"))
    assert found == {
        "0_0.attention.write_kernel.registers": (21, 20),
        "0_0.attention.attend_kernel (prefill) 1": ("there", None),
        "0_0.attention.attend_kernel (prefill) 2": ("there", None),
        "0_0.attention.attend_kernel (decode) 1": ("there", None),
        "0_0.attention.attend_kernel (decode) 2": ("there", None),
        "0_0.attention.attend_kernel (decode with split keys) 1": ("there", None),
    }


def test_attention_of_one_side_alone_is_counted(cache: Cache, tmp_path: Path) -> None:
    one, other = publish(tmp_path / "a", kernels()), publish(tmp_path / "b", None)
    assert differing(cache("diff", one.short, str(other.path), "--json")) == {
        "0_0.attention": ("5 kernels", None),
        "0_0.one.attention": ("triton 3.7.1", None),
        "0_0.two.attention": ("triton 3.7.1", None),
    }
