from __future__ import annotations

import hashlib

import pytest
import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.models.load import build
from graphkiln.core.models.source import identify


def weights_digest(name: str, seed: int = 0) -> str:
    deployment = Deployment(f"preset:{name}", seed=seed)
    digest = hashlib.sha256()
    for key, parameter in build(identify(deployment), deployment).backbone.named_parameters():
        digest.update(key.encode())
        digest.update(parameter.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", "e0e48fa7a6aeef52"),
        ("qwen3", "d3c6dbd867639ba9"),
        ("gemma3", "9681d37619eaa7ae"),
        ("gpt2", "0ea69525fb74ddcb"),
        ("mixtral", "16a0726af8c8d5b3"),
        ("qwen2_moe", "32815f5ee17b5305"),
        ("opt", "8f6ab0f195ee15d8"),
    ],
)
def test_weights_are_the_same_on_every_machine(name: str, expected: str) -> None:
    assert weights_digest(name) == expected


def test_another_seed_gives_other_weights() -> None:
    assert weights_digest("llama", seed=1) != weights_digest("llama")


def test_layers_of_the_deep_preset() -> None:
    deployment = Deployment("preset:llama-30l")
    served = build(identify(deployment), deployment, weights="none")
    assert [layer.name for layer in served.layers] == [f"layers.{index}.self_attn" for index in range(30)]
