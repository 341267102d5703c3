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
    usual = [(layer, LayerDtypes.all_of(BF16)) for layer in LAYERS]
    wanted = reachable(usual, BF16, DEPLOYMENT.block_size, DEPLOYMENT.max_num_seqs, 132)
    made.launches.put({one: lambda *args, stream: None for one in wanted}, 0)
    return made


def test_every_kind_of_step_is_gone_through_and_runs_nothing(served: ServedModel) -> None:
    found = rehearse(served, (), DEPLOYMENT)
    # Decode of 1 to 70 requests, a prefill alone and one beside 69 decodes; equal layers once.
    assert found.steps == 72
    assert found.launches > 2 * 2 * 72


def test_drafts_are_steps_of_their_own(served: ServedModel) -> None:
    drafting = replace(DEPLOYMENT, num_speculative_tokens=3)
    assert rehearse(served, (), drafting).steps == 2 * 70 + 2


@pytest.mark.parametrize("kernel", ["write_kernel", "attend_kernel", "join_kernel"])
def test_a_launch_without_code_is_named(served: ServedModel, kernel: str) -> None:
    kept = {one: launch for one, launch in served.launches.all().items() if one.kernel != kernel}
    served.launches.put(kept, 0)
    with pytest.raises(KernelNotSealed, match=f"no {kernel} for this step"):
        rehearse(served, (), DEPLOYMENT)


def test_code_that_waits_for_a_call_is_loaded(served: ServedModel) -> None:
    class Part:
        def loaded(self) -> None:
            raise PieceRefused("e", "a kernel cannot be mapped", "a")

    with pytest.raises(PieceRefused, match="cannot be mapped"):
        rehearse(served, (cast("CompiledPart", cast(Any, Part())),), DEPLOYMENT)
