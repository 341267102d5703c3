"""Small Hugging Face folders, made by transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.folders import causal_lm

MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Writes a seeded model of a type, with config values of choice, and returns its folder."""

    def make(
        model_type: str = "llama",
        *,
        dtype: torch.dtype = torch.float32,
        shard_size: str = "1GB",
        **config: Any,
    ) -> Path:
        folder = tmp_path / "model"
        causal_lm(model_type, **config).to(dtype).save_pretrained(folder, max_shard_size=shard_size)
        return folder

    return make
