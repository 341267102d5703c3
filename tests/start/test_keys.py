"""What two starts may differ in and still look for the same entry, and what they may not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch._functorch.config
import torch._inductor.config

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import Bypass
from graphkiln.core.start import key, warm
from tests.models.folders import causal_lm
from tests.start.conftest import Compiled


def lookup(config: CompilationConfig | None = None, *, model: str = "preset:llama", **deployment: Any) -> str:
    return key(Deployment(model, **deployment), config, trace=False).lookup


@pytest.fixture(scope="module")
def plain() -> str:
    return lookup()


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "bfloat16"},
        {"max_num_batched_tokens": 4096},
        {"max_num_seqs": 64},
        {"max_model_len": 1024},
        {"block_size": 32},
        {"target": "cpu:scalar"},
        {"model": "preset:qwen3"},
        {"config": CompilationConfig(inductor_compile_config={"epilogue_fusion": False})},
        {"config": CompilationConfig(splitting_ops=("aten::mm",))},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_request_looks_for_another_entry(plain: str, changed: dict[str, Any]) -> None:
    assert lookup(**changed) != plain


@pytest.mark.parametrize(
    "same",
    [{"seed": 7}, {"dtype": "float32"}, {"max_model_len": 2048}, {"device": "cpu"}, {"target": "cpu"}],
    ids=str,
)
def test_the_same_request_in_other_words_looks_for_the_same_entry(plain: str, same: dict[str, Any]) -> None:
    assert lookup(**same) == plain


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAPHKILN_CPP_FAST_MATH", "1"),
        ("TORCHINDUCTOR_SIZE_ASSERTS", "0"),
        ("TORCHINDUCTOR_ONLINE_SOFTMAX", "0"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
    ],
)
def test_a_variable_that_changes_code_looks_for_another_entry(
    plain: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert lookup() != plain


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAPHKILN_LOG_LEVEL", "DEBUG"),
        ("GRAPHKILN_LOCK_TIMEOUT", "5"),
        ("TORCHINDUCTOR_CACHE_DIR", "/elsewhere"),
        ("TORCHINDUCTOR_COMPILE_THREADS", "1"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0"),
        ("TORCH_LOGS", "+dynamo"),
        ("CXX", "clang++"),
        ("OMP_NUM_THREADS", "3"),
        ("MASTER_PORT", "29501"),
        ("CUDA_VISIBLE_DEVICES", "1"),
    ],
)
def test_a_variable_that_changes_no_code_looks_for_the_same_entry(
    plain: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert lookup() == plain


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch._inductor.config.patch({"epilogue_fusion": False}),
        lambda: torch._inductor.config.patch({"cpp.min_chunk_size": 1}),
        lambda: torch._functorch.config.patch({"treat_parameters_as_free_to_save": False}),
    ],
    ids=["inductor", "inductor.cpp", "functorch"],
)
def test_an_option_changed_in_the_process_looks_for_another_entry(
    plain: str, change: Callable[[], Any]
) -> None:
    with change():
        assert lookup() != plain
    assert lookup() == plain


def test_an_option_without_a_plain_form_is_refused_by_name() -> None:
    with (
        torch._inductor.config.patch({"post_grad_custom_post_pass": lambda graph: None}),
        pytest.raises(Bypass, match="post_grad_custom_post_pass"),
    ):
        lookup()


def test_two_copies_of_a_model_folder_are_one_model(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "deep" / "other"
    causal_lm("llama").save_pretrained(one)
    shutil.copytree(one, other)
    first, second = key(Deployment(str(one))), key(Deployment(str(other)))
    assert first.key == second.key
    assert str(tmp_path) not in str(first.factors)


def test_a_traced_key_is_that_of_the_entry(llama: Compiled) -> None:
    found = key(Deployment("preset:llama"))
    assert found.key == llama.child.report["key"]
    assert found.key is not None
    assert found.key.startswith(llama.entry.name)


def test_a_start_of_another_dtype_misses(llama: Compiled) -> None:
    report = warm(Deployment("preset:llama", dtype="bfloat16"), require_hit=True, cache_root=llama.root)
    assert (report.outcome, report.entry_path) == ("miss", None)
    assert report.counts["frames_converted"] == 0
