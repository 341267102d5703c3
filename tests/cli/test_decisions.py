"""What would happen with these options: `key --no-trace --json`, without a stand-in for `core`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def key(*words: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "graphkiln.cli",
        "key",
        "preset:llama",
        "--no-trace",
        "--json",
        "-q",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_options_show_as_decisions_and_as_factors() -> None:
    plain = key()
    made = key(
        "-O1", "-cc.cudagraph_mode=FULL", "-cc.compile_ranges_endpoints=[8,64,9000]", "-cc.compile_sizes=[1]"
    )
    decided = {row.pop("field"): row for row in made["decisions"]}
    assert decided["cudagraph_mode"] == {
        "asked": "FULL",
        "got": "NONE",
        "reason": "a CPU has no CUDA graphs",
    }
    assert decided["mode"]["reason"] == "optimization level 1"
    assert decided["compile_ranges_endpoints"]["asked"] == [8, 64, 9000]
    assert decided["compile_ranges_endpoints"]["got"] == [8, 64]
    effective = made["effective"]["compilation"]
    assert effective["compile_ranges"] == ["(1, 8)", "(9, 64)", "(65, 2048)"]
    assert effective["cudagraphs"]["mode"] == "NONE"
    compilation = made["factors"]["config"]["compilation"]
    assert compilation["ranges"] == [[1, 8], [9, 64], [65, 2048]]
    assert compilation["single_sizes"] == [1]
    assert not [name for name in compilation if "cudagraph" in name]
    assert made["lookup"] != plain["lookup"]


@pytest.mark.slow
def test_options_of_cuda_graphs_alone_leave_the_lookup_as_it_is() -> None:
    assert (
        key()["lookup"] == key("-cc.cudagraph_mode=PIECEWISE", "--performance-mode=interactivity")["lookup"]
    )
