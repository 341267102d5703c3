"""A start that finds nothing for its target, where the very same was compiled for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.core import start
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import AotRefused
from graphkiln.core.other_targets import other_target
from graphkiln.core.plan import make_plan
from graphkiln.core.target.named import find_target
from tests.explain.conftest import DEPLOYMENT
from tests.explain.recorded import Recorded

Publish = Callable[..., Entry]


def compiled_for(target: str, **config: Any) -> Callable[[Recorded], None]:
    def edit(recorded: Recorded) -> None:
        recorded.factors["compiler"]["target"] = find_target(target).as_factor()
        recorded.factors["config"].update(config)

    return edit


def near(root: Path, target: str) -> str:
    plan = make_plan(Deployment("preset:llama", target=target), CompilationConfig())
    return other_target(Store(CacheRoot(root)), plan)[0]


def test_the_nearest_is_named_and_the_others_are_counted(publish: Publish, root: Path) -> None:
    assert near(root, "cpu:scalar") == ""
    entry = publish(compiled_for("cpu:avx512"))
    line = f"entry {entry.short} is for cpu:avx512; this start is for cpu:scalar"
    assert near(root, "cpu:scalar") == line
    publish(compiled_for("cpu:avx2"))
    assert "(and 1 for others)" in near(root, "cpu:scalar")


def test_an_entry_of_another_deployment_is_not_near(publish: Publish, root: Path) -> None:
    publish(compiled_for("cpu:avx512", max_num_batched_tokens=64))
    assert near(root, "cpu:scalar") == ""


def test_a_start_that_misses_says_what_there_is_and_opens_nothing_of_it(publish: Publish, root: Path) -> None:
    entry = publish(compiled_for("h200"))
    (artifact,) = entry.path.glob("artifacts/*/wrapper.py")
    artifact.write_text("raise SystemExit('it was run')")
    report = start.warm(DEPLOYMENT, require_hit=True, cache_root=root)
    here = find_target(None).name
    assert (report.outcome, [reason.name for reason in report.reasons]) == ("miss", ["target"])
    line = f"entry {entry.short} is for NVIDIA H200 (9.0, 132 SMs); this start is for {here}"
    assert line in report.notes
    with pytest.raises(AotRefused, match="target was 'NVIDIA H200"):
        start.warm(DEPLOYMENT, force_aot_load=True, cache_root=root)
