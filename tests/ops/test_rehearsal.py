"""Steps gone through without a device: each launch of attention finds its code, or says which has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import PieceRefused
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops import paged
from graphkiln.core.ops.errors import KernelNotSealed
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.ops.specialisations import LayerDtypes, reachable
from graphkiln.core.rehearsal import rehearse

BF16 = torch.bfloat16
LAYER = AttentionLayer("layer", heads=4, kv_heads=2, head_size=16, value_size=16, scale=0.25)
LAYERS = (LAYER, replace(LAYER, name="equal"), replace(LAYER, name="window", window=7))
DEPLOYMENT = Deployment("m", dtype="bfloat16", target="h200", max_num_seqs=70)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(paged, "_processors", lambda device: 132)
    monkeypatch.setattr(paged, "_no_means", lambda: "nothing compiles in this test")
    made = ServedModel(
        torch.nn.Module(),
        lambda hidden: hidden,
        lambda count: (),
        LAYERS,
        8,
        2048,
        BF16,
        torch.device("cuda", 0),
    )
    holds(made, {layer.name: LayerDtypes.all_of(BF16) for layer in LAYERS})
    return made


def holds(served: ServedModel, dtypes: dict[str, LayerDtypes]) -> None:
    """Puts all that layers called with these dtypes can ask for."""
    called = [(layer, dtypes[layer.name]) for layer in LAYERS]
    wanted = reachable(called, BF16, DEPLOYMENT.block_size, DEPLOYMENT.max_num_seqs, 132)
    served.launches.put({one: lambda *args, stream: None for one in wanted}, 0, dtypes)


def test_every_kind_of_step_is_gone_through_and_runs_nothing(served: ServedModel) -> None:
    found = rehearse(served, (), DEPLOYMENT)
    # Decode of 1 to 70 requests, a prefill alone and one beside 69 decodes; equal layers once.
    assert found.steps == 72
    assert found.launches > 2 * 2 * 72


def test_a_layer_is_called_with_the_dtypes_that_its_entry_says(served: ServedModel) -> None:
    usual = rehearse(served, (), DEPLOYMENT)
    mixed = LayerDtypes(torch.float32, torch.float16, BF16, torch.float32)
    holds(served, {layer.name: LayerDtypes.all_of(BF16) for layer in LAYERS} | {"equal": mixed})
    # No equal any more of the layer that it is like but for its name.
    assert rehearse(served, (), DEPLOYMENT).launches > usual.launches * 4 / 3


def test_drafts_are_steps_of_their_own(served: ServedModel) -> None:
    drafting = replace(DEPLOYMENT, num_speculative_tokens=3)
    assert rehearse(served, (), drafting).steps == 2 * 70 + 2


@pytest.mark.parametrize("kernel", ["write_kernel", "attend_kernel", "join_kernel"])
def test_a_launch_without_code_is_named(served: ServedModel, kernel: str) -> None:
    kept = {one: launch for one, launch in served.launches.all().items() if one.kernel != kernel}
    served.launches.put(kept, 0, served.launches.dtypes)
    with pytest.raises(KernelNotSealed, match=f"no {kernel} for this step"):
        rehearse(served, (), DEPLOYMENT)


def test_code_that_waits_for_a_call_is_loaded(served: ServedModel) -> None:
    class Part:
        def loaded(self) -> None:
            raise PieceRefused("e", "a kernel cannot be mapped", "a")

    with pytest.raises(PieceRefused, match="cannot be mapped"):
        rehearse(served, (cast("CompiledPart", cast(Any, Part())),), DEPLOYMENT)
