"""Mixtures of experts, computed as they are traced, against one expert after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.load import build
from graphkiln.core.models.source import identify
from graphkiln.core.ops.forward_context import set_forward_context
from graphkiln.core.plan import make_plan
from graphkiln.core.runner import dummy_context
from tests.models.conftest import MakeFolder

PRESETS = ("mixtral", "qwen2_moe")
FOLDERS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16},
}


def implementation(served: Any) -> str:
    return str(served.backbone.get_submodule("model").config._experts_implementation)


def assert_experts_are_those_of_eager(deployment: Deployment) -> None:
    served = build(identify(deployment), deployment)
    eager = build(identify(deployment), deployment, attention="eager")
    assert (implementation(served), implementation(eager)) == ("batched_mm", "eager")
    for num_tokens in (1, 7, 64):
        inputs = served.example_inputs(num_tokens)
        with torch.no_grad(), set_forward_context(dummy_context(served, deployment, num_tokens)):
            got, want = served.backbone.forward(*inputs), eager.backbone.forward(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_s_experts_give_the_numbers_of_eager_ones(name: str) -> None:
    assert_experts_are_those_of_eager(Deployment(f"preset:{name}"))


@pytest.mark.parametrize("model_type", FOLDERS)
def test_a_folder_s_experts_give_the_numbers_of_eager_ones(make_folder: MakeFolder, model_type: str) -> None:
    assert_experts_are_those_of_eager(Deployment(str(make_folder(model_type, **FOLDERS[model_type]))))


@pytest.mark.parametrize(("name", "got"), [("mixtral", ["batched_mm"]), ("llama", [])])
def test_how_experts_are_computed_is_a_decision(name: str, got: list[str]) -> None:
    decisions = make_plan(Deployment(f"preset:{name}"), CompilationConfig()).decisions
    assert [decision.got for decision in decisions if decision.field == "experts"] == got
