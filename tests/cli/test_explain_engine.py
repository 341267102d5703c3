"""An environment is compared with the entries of another engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.layouts.trees import Vllm


def test_explain_compares_an_environment_with_vllms_entries(
    tree: Vllm, tmp_path: Path, run: Callable[..., Run]
) -> None:
    file = tmp_path / "environment"
    file.write_text("VLLM_XGRAMMAR_CACHE_MB=512\n")
    done = run("explain", "--engine", f"vllm:{tree.root}", "--env-file", str(file))
    assert done.status == 0
    assert done.out.split()[:3] == ["hit", "vllm", "for"]
    assert str(file) in done.out
    file.write_text("VLLM_XGRAMMAR_CACHE_MB=300\nVLLM_CACHE_ROOT=" + str(tree.root))
    done = run("explain", "--engine", "vllm", "--env-file", str(file))
    assert done.status == 1
    for text in ("nearest", "env.VLLM_XGRAMMAR_CACHE_MB", "512", "300", "set VLLM_XGRAMMAR_CACHE_MB=512"):
        assert text in done.out
    file.write_text(
        "kind: Pod\nspec:\n  containers:\n  - env: [{name: VLLM_XGRAMMAR_CACHE_MB, valueFrom: {}}]\n"
    )
    assert run("explain", "--engine", f"vllm:{tree.root}", "--env-file", str(file)).status == 3
    found = run("explain", "--engine", f"vllm:{tree.root}", "--env-file", str(file), "--json")
    assert json.loads(found.out)["outcome"] == "unknown"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain"], "missing argument 'MODEL'"),
        (["explain", "--engine", "sglang", "--env-file", "-"], "no engine 'sglang'"),
        (["explain", "preset:llama", "--engine", "vllm"], "--engine takes no MODEL"),
        (["explain", "--engine", "vllm:/etc"], "--engine needs one of --env-file and --env-from"),
        (
            ["explain", "--engine", "vllm:/etc", "--env-file", "a", "--env-from", "1"],
            "--engine needs not both",
        ),
        (
            ["explain", "preset:llama", "--env-file", "a"],
            "--env-file, --env-from and --container need an engine",
        ),
        (
            ["explain", "--engine", "vllm", "--env-file", "/nowhere"],
            "no environment can be read from /nowhere",
        ),
    ],
)
def test_explain_of_an_engine_refuses_bad_input(
    words: list[str], sentence: str, run: Callable[..., Run]
) -> None:
    done = run(*words)
    assert (done.status, done.err.startswith(f"error: {sentence}")) == (2, True), done.err
