"""A model of a factory, compiled below its root, with graphkiln's own attention: its layers are declared."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

# Registers the two ops.
import graphkiln.core.ops.attention  # noqa: F401
from graphkiln.core import support_torch_compile
from graphkiln.core.ops.layer import AttentionLayer

HEADS, KV_HEADS, SIZE, WIDTH = 4, 2, 16, 32
WINDOW = 3


@support_torch_compile
class Block(nn.Module):
    """One layer: hidden states [T, WIDTH] to the same."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.query = nn.Linear(WIDTH, HEADS * SIZE)
        self.key = nn.Linear(WIDTH, KV_HEADS * SIZE)
        self.value = nn.Linear(WIDTH, KV_HEADS * SIZE)
        self.out = nn.Linear(HEADS * SIZE, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x).view(-1, HEADS, SIZE)
        key, value = self.key(x).view(-1, KV_HEADS, SIZE), self.value(x).view(-1, KV_HEADS, SIZE)
        output = torch.empty_like(query)
        written = torch.ops.graphkiln.unified_kv_cache_update(key, value, self.name)
        torch.ops.graphkiln.unified_attention_with_output(query, key, value, output, self.name, written)
        made: torch.Tensor = x + self.out(output.flatten(1))
        return made


class Model(nn.Module):
    """Token ids [T] to hidden states [T, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, WIDTH)
        self.one, self.two = Block("first"), Block("second")
        first = AttentionLayer("first", HEADS, KV_HEADS, SIZE, SIZE, scale=0.25)
        self.attention_layers = [first, replace(first, name="second", window=WINDOW)]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.two(self.one(self.embed(ids)))
        return made


def make() -> Model:
    torch.manual_seed(0)
    return Model()
