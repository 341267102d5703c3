from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch

from graphkiln.core.ops import backends
from graphkiln.core.ops.backends import choose_backend, register_attention_backend
from graphkiln.core.ops.errors import NoAttentionBackend
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.plain import PlainTorch
from graphkiln.core.ops.support import AttentionSupport

CPU = torch.device("cpu")
LAYER = AttentionLayer("layer", heads=4, kv_heads=2, head_size=16, value_size=16, scale=0.3)


class Mine(PlainTorch):
    """Computes heads of 16 alone."""

    name = "mine"
    support = AttentionSupport.UNIFORM_BATCH

    def refusal(self, layer: AttentionLayer, dtype: torch.dtype, device: torch.device) -> str | None:
        return None if layer.head_size == 16 else f"{layer.name} has heads of {layer.head_size}"


@pytest.fixture
def _restored() -> Iterator[None]:
    before = list(backends._registered)
    yield
    backends._registered[:] = before


@pytest.mark.usefixtures("_restored")
def test_a_backend_of_the_user_s_is_asked_first_and_may_refuse() -> None:
    register_attention_backend(Mine)
    assert isinstance(choose_backend([LAYER], torch.float32, CPU), Mine)
    wide = AttentionLayer("wide", 4, 2, 32, 32, 0.3)
    assert choose_backend([LAYER, wide], torch.float32, CPU).name == "torch"


@pytest.mark.usefixtures("_restored")
def test_a_name_registered_again_replaces_the_one_before() -> None:
    class Other(Mine):
        pass

    register_attention_backend(Mine)
    register_attention_backend(Other)
    assert isinstance(choose_backend([LAYER], torch.float32, CPU, "mine"), Other)
    assert [one.name for one in backends.attention_backends()] == ["mine", "triton", "torch"]


def test_no_backend_is_an_error_that_names_each_refusal() -> None:
    with pytest.raises(NoAttentionBackend, match="triton: it runs on CUDA devices, not on cpu"):
        choose_backend([LAYER], torch.float32, CPU, "triton")
    with pytest.raises(NoAttentionBackend, match="absent: no backend has this name") as caught:
        choose_backend([LAYER], torch.float32, CPU, "absent")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.refusals) == (str(caught.value), caught.value.refusals)
