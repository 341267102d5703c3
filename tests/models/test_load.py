from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import ModelError, WeightsDamaged
from graphkiln.core.models.load import build
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.ops.forward_context import set_forward_context
from graphkiln.core.runner import dummy_context
from tests.models.conftest import MakeFolder
from tests.models.folders import pretrained, with_traceable_experts


def built(folder: Path, **fields: Any) -> ServedModel:
    deployment = Deployment(str(folder), **fields)
    return build(identify(deployment), deployment)


def logits(served: ServedModel, num_tokens: int) -> torch.Tensor:
    ids, positions = served.example_inputs(num_tokens)
    context = dummy_context(served, Deployment("m"), num_tokens)
    with torch.no_grad(), set_forward_context(context):
        return served.compute_logits(served.backbone(ids, positions))


def transformers_logits(
    folder: Path, served: ServedModel, num_tokens: int, dtype: Any = "auto"
) -> torch.Tensor:
    model = with_traceable_experts(pretrained(folder, dtype))
    ids, positions = served.example_inputs(num_tokens)
    with torch.no_grad():
        output: torch.Tensor = model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False
        ).logits
    return output[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard_size", ["1GB", "100KB"])
def test_logits_are_bit_equal_to_from_pretrained(
    make_folder: MakeFolder, tied: bool, dtype: torch.dtype, shard_size: str
) -> None:
    folder = make_folder(dtype=dtype, shard_size=shard_size, tie_word_embeddings=tied)
    assert (folder / "model.safetensors.index.json").exists() == (shard_size == "100KB")
    served = built(folder)
    assert served.dtype == dtype
    for num_tokens in (1, 2, 17):
        assert torch.equal(logits(served, num_tokens), transformers_logits(folder, served, num_tokens))


def test_another_dtype_than_the_files_is_bit_equal_too(make_folder: MakeFolder) -> None:
    folder = make_folder()
    served = built(folder, dtype="bfloat16")
    assert torch.equal(logits(served, 9), transformers_logits(folder, served, 9, torch.bfloat16))


def test_every_parameter_and_buffer_is_that_of_from_pretrained(make_folder: MakeFolder) -> None:
    folder = make_folder("qwen3", head_dim=16)
    ours = built(folder).backbone.get_submodule("model")
    theirs = pretrained(folder).base_model
    for mine, its in (
        (ours.named_parameters(), theirs.named_parameters()),
        (ours.named_buffers(), theirs.named_buffers()),
    ):
        mine_by_name, its_by_name = dict(mine), dict(its)
        assert mine_by_name.keys() == its_by_name.keys()
        for name, tensor in mine_by_name.items():
            assert tensor.dtype == its_by_name[name].dtype
            assert torch.equal(tensor, its_by_name[name])


def test_tied_weights_share_memory_and_nothing_needs_a_gradient(make_folder: MakeFolder) -> None:
    served = built(make_folder(tie_word_embeddings=True))
    model = served.compute_logits._model  # type: ignore[attr-defined]
    embedding = served.backbone.get_parameter("model.embed_tokens.weight")
    assert model.lm_head.weight.data_ptr() == embedding.data_ptr()
    assert not any(p.requires_grad for p in [*served.backbone.parameters(), *model.parameters()])
    assert not served.backbone.training


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are read from /proc")
def test_weights_stay_in_the_mapped_file(make_folder: MakeFolder) -> None:
    folder = make_folder()
    served = built(folder)
    mapped = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(folder / "model.safetensors") in line
    ]
    for name, parameter in served.backbone.named_parameters():
        assert any(start <= parameter.data_ptr() < end for start, end in mapped), name


def test_a_tensor_of_another_shape_is_named(make_folder: MakeFolder) -> None:
    folder = make_folder()
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(7)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        WeightsDamaged, match=r"model\.norm\.weight in model\.safetensors is \[7\].*\[64\]"
    ) as caught:
        built(folder)
    assert caught.value.ref == str(folder)


def test_a_missing_tensor_is_named(make_folder: MakeFolder, capfd: pytest.CaptureFixture[str]) -> None:
    folder = make_folder()
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    capfd.readouterr()
    with pytest.raises(WeightsDamaged, match=r"model\.layers\.1\.mlp\.up_proj\.weight is in no weight file"):
        built(folder)
    assert capfd.readouterr() == ("", "")


def test_a_truncated_file_is_damaged(make_folder: MakeFolder) -> None:
    folder = make_folder()
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(WeightsDamaged, match="is cut short"):
        built(folder)


def test_a_folder_without_weights_is_built_only_when_none_are_asked_for(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        built(folder)
    dummy = built(folder, load_format="dummy")
    assert torch.isfinite(logits(dummy, 5)).all()
    deployment = Deployment(str(folder))
    empty = build(identify(deployment), deployment, weights="none")
    assert {p.device.type for p in empty.backbone.parameters()} == {"cpu"}


def test_a_config_that_transformers_refuses_is_one_line(make_folder: MakeFolder) -> None:
    folder = make_folder()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": "four"}))
    with pytest.raises(ModelError, match="does not describe a LlamaForCausalLM") as caught:
        built(folder)
    assert "\n" not in str(caught.value)


def test_fused_weights_are_loaded_by_transformers_itself(make_folder: MakeFolder) -> None:
    folder = make_folder("mixtral", num_local_experts=4)
    served = built(folder)
    assert torch.equal(logits(served, 9), transformers_logits(folder, served, 9))


def test_stop_tokens_are_those_of_the_generation_config(make_folder: MakeFolder) -> None:
    folder = make_folder(eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert built(folder).stop_ids == (3, 4)
    (folder / "generation_config.json").unlink()
    assert built(folder).stop_ids == (5,)


def test_example_positions_stay_below_the_length(make_folder: MakeFolder) -> None:
    served = built(make_folder(), max_model_len=10)
    ids, positions = served.example_inputs(25)
    assert positions.max() == 9
    assert ids.max() < 128
    assert len(set(ids.tolist())) > 20
