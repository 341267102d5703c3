"""One real trace a session, and entries published from it with something changed: nothing is compiled."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.factors.functions import locate
from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.load import build
from graphkiln.core.part import Part
from graphkiln.core.plan import make_plan
from graphkiln.core.publication import versions
from graphkiln.core.tracing import trace_part
from tests.explain.recorded import Edit, Recorded

DEPLOYMENT = Deployment("preset:llama")


@dataclass(frozen=True)
class Traced:
    """What a start of DEPLOYMENT here would record."""

    factors: dict[str, Any]
    sources: dict[str, Any]
    texts: dict[str, str]
    requested: dict[str, Any]

    def recorded(self) -> Recorded:
        copied = copy.deepcopy((self.factors, self.sources, self.texts))
        return Recorded(*copied, versions(), ["0_0"])


@pytest.fixture(scope="session")
def traced() -> Traced:
    plan = make_plan(DEPLOYMENT, CompilationConfig())
    assert plan.source is not None
    served = build(plan.source, DEPLOYMENT, weights="none")
    code = trace_part(Part("backbone", served.backbone, served.example_inputs), plan).code
    texts = {
        module: importlib.util.decode_source(path.read_bytes())
        for module in code.sources
        # Of the others an entry may keep no copy, which makes this quick.
        if module.startswith("graphkiln.") and (path := locate(module)) is not None
    }
    # Hundreds of values that are alike make every entry slow to write and to read.
    values = code.factor["values"]
    code.factor["values"] = [row for at, row in enumerate(values) if at % 9 == 0 or row["kind"] == "constant"]
    # As if the model had asked for a variable that is not set.
    code.factor["environment"]["MY_KERNEL"] = None
    return Traced(plan.with_code({"backbone": code.factor}).as_json(), code.sources, texts, plan.requested())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def publish(traced: Traced, root: Path) -> Callable[..., Entry]:
    """Gives `publish(edit)`: an entry of the traced factors after the edit; its pieces cannot be run."""

    def published(edit: Edit | None = None, graph: str = "def main(): ...\n", **build: Any) -> Entry:
        recorded = traced.recorded()
        if edit is not None:
            edit(recorded)
        header = {"requested": traced.requested}
        return write_entry(Store(CacheRoot(root)), recorded, header, graph, build)

    return published


def write_entry(
    store: Store, recorded: Recorded, header: dict[str, Any], graph: str, build: dict[str, Any]
) -> Entry:
    factors = Factors.from_json(recorded.factors)
    with store.draft(factors.key) as draft:
        artifact = draft.add_artifact({"piece.json": b"{}", "wrapper.py": b"def call(args): ...\n"})
        sources = {
            module: {**record, "stored": draft.add_source(text) if text else None}
            for module, record in recorded.sources.items()
            for text in [recorded.texts.get(module)]
        }
        piece = {"fingerprint": "f" * 64, "range": [1, 2048], "artifact": artifact, "dynamic": "backed"}
        wiring = {"format": 1, "steps": [{"piece": 0, "args": [], "outs": [0]}], "pieces": [piece]}
        for rank in recorded.ranks:
            draft.add_part(rank, "backbone", graph, {**wiring, "sources": sources, "model": None}, [artifact])
            draft.set_rank(rank, {}, {"backbone": {"pieces": {}, **build}})
        config = recorded.factors["config"]
        return draft.publish(
            {
                **header,
                "model": "preset:llama",
                "dtype": config["dtype"],
                "target": {**recorded.factors["compiler"]["target"], "name": "cpu"},
                "versions": recorded.versions,
                "phases": [["compile", 12.5]],
            },
            factors,
        )
