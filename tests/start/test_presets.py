"""Each preset of another architecture: compiled once, then started by a process that finds it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.models.assign import initializer_range, random_tensor
from graphkiln.core.models.presets import PRESETS
from graphkiln.core.models.source import identify
from tests.start.children import start
from tests.start.conftest import Compiled
from tests.start.test_hits import assert_compiled_nothing

LAYERS = {"gemma3": 4, "gpt2": 3, "mixtral": 3, "qwen2_moe": 3, "opt": 3}
EXPERTS = ("mixtral", "qwen2_moe")
LIMITS = {"max_num_batched_tokens": 64}
# Longer than gemma3's window, so that decoding leaves tokens behind.
PROMPT = [5, 17, 250, 3, 99, 42, 8, 120, 77, 201, 13, 64, 31, 9, 160, 88, 2, 145, 230, 54, 111]
NEW_TOKENS = 12

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=LAYERS)
def preset(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def compiled(preset: str, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    root = tmp_path_factory.mktemp(preset) / "root"
    options = {"cache_root": str(root)}
    return Compiled(root, start("precompile", f"preset:{preset}", deployment=LIMITS, options=options))


def test_it_is_traced_as_one_graph_and_equals_eager(compiled: Compiled, preset: str) -> None:
    report = compiled.child.report
    assert report["outcome"] == "compiled"
    assert report["counts"]["frames_converted"] == compiled.child.answer["frames"] == 1
    total = LAYERS[preset] + 1
    assert report["pieces"] == {"total": total, "distinct": 3, "compiled": 3, "reused": total - 3}
    rows = report["check"]["rows"]
    assert [row["num_tokens"] for row in rows] == [1, 2, 7, 64]
    assert all(row["max_abs_error"] <= row["tolerance"] for row in rows)
    experts = [decision["got"] for decision in report["decisions"] if decision["field"] == "experts"]
    assert experts == (["batched_mm"] if preset in EXPERTS else [])


def test_another_process_decodes_from_it_what_transformers_generates(compiled: Compiled, preset: str) -> None:
    child = start(
        "load_model",
        f"preset:{preset}",
        deployment=LIMITS,
        options={"cache_root": str(compiled.root)},
        greedy=(PROMPT, NEW_TOKENS),
    )
    assert_compiled_nothing(child)
    assert "transformers" not in child.answer["imported"]
    assert child.answer["tokens"] == generated(preset)


def generated(name: str) -> list[int]:
    """Returns what transformers itself makes of the prompt, with its own attention, experts and cache."""
    model = transformers_model(name)
    prompt = torch.tensor([PROMPT])
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(made.logits).topk(2).values
    # Otherwise equal tokens would be luck.
    assert (best[..., 0] - best[..., 1]).min() > 1e-3
    tokens: list[int] = made.sequences[0, len(PROMPT) :].tolist()
    return tokens


def transformers_model(name: str) -> Any:
    architecture = identify(Deployment(f"preset:{name}")).architecture
    assert architecture is not None
    kind: Any = getattr(importlib.import_module(architecture.module), architecture.name)
    config = kind.config_class.from_dict(dict(PRESETS[name]))
    model = kind._from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(random_tensor(f"0:{key}", parameter, initializer_range(model)))
    return model
