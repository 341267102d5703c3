"""Entries as they lie on disk, made quickly: any age, any size, any kind of file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.documents import seal, unseal
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store

NOW = datetime.now(UTC)


def make_entry(
    store: Store,
    code: str = "one",
    *,
    model: str = "llama",
    dtype: str = "float32",
    torch: str = "2.13.0",
    target: str = "cpu:avx2",
    env: bool = False,
    kernel: bytes = b"\x7fELF",
    age_days: float = 0.0,
    header: Mapping[str, Any] | None = None,
    **texts: Any,
) -> Entry:
    """Publish an entry that holds every kind of file; `texts` replace what is in them."""
    factors = Factors(
        env={"GRAPHKILN_CPP_FAST_MATH": env},
        config={"model": {"architectures": [model]}, "dtype": dtype, **texts.get("config", {})},
        code={"backbone": {"functions": {f"models.{model}": {"Model.forward": code}}}},
        compiler={"torch": torch, "inductor": {"cpp.simdlen": None}},
    )
    with store.draft(factors.key) as draft:
        files = {"kernels/k.so": kernel, "wrapper.py": texts.get("wrapper", "def call(args): ...\n").encode()}
        artifact = draft.add_artifact(files)
        draft.add_source(texts.get("source", "def forward(x):\n    return x\n"))
        wiring = {"pieces": [{"artifact": artifact}], **texts.get("wiring", {})}
        draft.add_part("0_0", "backbone", texts.get("graph", "def forward(): ...\n"), wiring, [artifact])
        draft.set_rank("0_0", texts.get("specific", {}), {"isa": "avx2"})
        about = {
            "model": model, "dtype": dtype, "target": {"name": target},
            "pieces": {"total": 3, "distinct": 1}, **(header or {}),
        }  # fmt: skip
        entry = draft.publish(about, factors)
    return aged(entry, age_days)


def aged(entry: Entry, days: float) -> Entry:
    """Rewrite an entry's header so that it was made that many days ago."""
    return reheaded(entry, created=(NOW - timedelta(days=days)).isoformat(timespec="microseconds"))


def reheaded(entry: Entry, **changes: Any) -> Entry:
    path = entry.path / "entry.json"
    path.write_bytes(seal({**unseal(path.read_bytes()), **changes}, "header"))
    return Entry(entry.path)


def note_use(entry: Entry, days_ago: float, **state: Any) -> None:
    at = (NOW - timedelta(days=days_ago)).isoformat()
    (entry.path / "state.json").write_text(json.dumps({"last_used": at, **state}))


def cache_at(path: Path) -> Store:
    return Store(CacheRoot(path))
