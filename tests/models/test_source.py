from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import ModelError, UnsupportedModel, WeightsDamaged
from graphkiln.core.models.presets import PRESETS
from graphkiln.core.models.source import identify

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "max_position_embeddings": 128,
    "dtype": "bfloat16",
    "transformers_version": "5.0.0",
    "_name_or_path": "/somewhere",
}


def folder_with(path: Path, **changes: Any) -> Path:
    """A folder whose config.json is LLAMA with changes; a value of None removes the key."""
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def refusal(model: Any, **fields: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        identify(Deployment(str(model), **fields))
    error = caught.value
    assert "\n" not in str(error)
    assert error.remedy
    assert error.ref == str(model)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error


def test_identify_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model")
    code = (
        "import sys\n"
        "from graphkiln.core.deployment import Deployment\n"
        "from graphkiln.core.models.source import identify\n"
        f"for model in ('preset:llama', {str(folder)!r}, 'json:loads'):\n"
        "    identify(Deployment(model))\n"
        "print(sorted({'torch', 'transformers', 'safetensors'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_is_known_by_content_and_not_by_path(tmp_path: Path) -> None:
    one = identify(Deployment(str(folder_with(tmp_path / "one", _name_or_path="/a", dtype="float32"))))
    two = identify(Deployment(str(folder_with(tmp_path / "two", _name_or_path="/b"))))
    assert one.config == two.config
    assert not {"_name_or_path", "transformers_version", "dtype"} & set(one.config)
    assert (one.dtype, two.dtype) == ("float32", "bfloat16")
    assert (one.kind, one.label, one.max_model_len) == ("folder", "one", 128)
    assert one.architecture is not None
    assert one.architecture.module == "transformers.models.llama.modeling_llama"


def test_nested_dtypes_are_no_content(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", text_config={"dtype": "float32", "hidden_size": 8})
    assert identify(Deployment(str(folder))).config["text_config"] == {"hidden_size": 8}


@pytest.mark.parametrize(("asked", "got"), [("half", "float16"), ("float", "float32"), ("auto", "bfloat16")])
def test_dtype_is_never_an_alias(tmp_path: Path, asked: str, got: str) -> None:
    assert identify(Deployment(str(folder_with(tmp_path / "model")), dtype=asked)).dtype == got


def test_dtype_of_a_config_without_one_is_that_of_the_weights(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", dtype=None)
    assert identify(Deployment(str(folder))).dtype == "float32"
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert identify(Deployment(str(folder))).dtype == "bfloat16"
    (folder / "model.safetensors").write_bytes(b"xx")
    with pytest.raises(WeightsDamaged, match="cut short"):
        identify(Deployment(str(folder)))


def test_every_preset_is_identified() -> None:
    for name in PRESETS:
        source = identify(Deployment(f"preset:{name}", max_model_len=64))
        assert (source.kind, source.dtype, source.max_model_len) == ("preset", "float32", 64)


def test_a_model_type_that_lives_in_another_folder_is_found(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", architectures=["Gemma3ForCausalLM"], model_type="gemma3_text")
    source = identify(Deployment(str(folder)))
    assert source.architecture is not None
    assert source.architecture.module == "transformers.models.gemma3.modeling_gemma3"


def test_a_missing_folder_is_named() -> None:
    for missing in ("/nowhere/at/all", "~nobody-of-that-name/model", "x" * 5000):
        assert "no such folder" in str(refusal(missing))


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in str(refusal(tmp_path / "file"))


def test_a_folder_without_config(tmp_path: Path) -> None:
    assert "has no config.json" in str(refusal(tmp_path))


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "is not JSON"), ("[1]", "is not an object"), ("\xff", "is not JSON")]
)
def test_a_config_that_is_not_one(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert reason in str(refusal(tmp_path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": None}, "names no architectures"),
        ({"architectures": ["../evil"]}, "names the architecture"),
        ({"model_type": None}, "has no model_type"),
        ({"dtype": "int4"}, "states dtype 'int4'"),
        ({"max_position_embeddings": None}, "states no maximum length"),
    ],
)
def test_a_config_that_lacks_something(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    assert reason in str(refusal(folder_with(tmp_path / "model", **changes)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["NoSuchForCausalLM"], "model_type": "no_such"}, "has no NoSuchForCausalLM"),
        ({"architectures": ["NoSuchForCausalLM"]}, "has no NoSuchForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "../../llama"}, "has no LlamaForCausalLM"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "is not a causal language model"),
        ({"architectures": ["FalconForCausalLM"], "model_type": "falcon"}, "cannot be replaced"),
        ({"architectures": ["BloomForCausalLM"], "model_type": "bloom"}, "cannot be replaced"),
        ({"quantization_config": {"quant_method": "gptq"}}, "are quantised"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "rope type 'dynamic'"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    error = refusal(folder_with(tmp_path / "model", **changes))
    assert isinstance(error, UnsupportedModel)
    assert reason in str(error)


def test_a_length_beyond_the_models_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model")
    assert "max_model_len 129 is more than the model's 128" in str(refusal(folder, max_model_len=129))
    assert identify(Deployment(str(folder), max_model_len=128)).max_model_len == 128


@pytest.mark.parametrize(
    "fields", [{"tensor_parallel_size": 2}, {"enable_lora": True}, {"num_speculative_tokens": 3}]
)
def test_what_is_not_built_yet_is_refused_by_name(fields: dict[str, Any]) -> None:
    assert isinstance(refusal("preset:llama", **fields), UnsupportedModel)


def test_an_unknown_preset_is_answered_with_the_list() -> None:
    names = "llama, qwen3, gemma3, gpt2, mixtral, qwen2_moe, opt, llama-1b, llama-30l"
    assert names in str(refusal("preset:nope"))


def test_a_preset_has_no_weight_files() -> None:
    assert "no weight files" in str(refusal("preset:llama", load_format="safetensors"))
    assert identify(Deployment("preset:llama", load_format="dummy")).dtype == "float32"


def test_a_factory_in_no_module_is_named() -> None:
    assert "no module 'no_such_module.sub'" in str(refusal("no_such_module.sub:make"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": " "}, "model"),
        ({"dtype": "fp8"}, "dtype"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"block_size": 1.5}, "block_size"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"seed": -1}, "seed"),
        ({"load_format": "pickle"}, "load_format"),
        ({"device": "tpu"}, "device"),
        ({"target": ""}, "target"),
        ({"device": "cpu", "target": "h200"}, "device"),
        ({"enable_lora": 1}, "enable_lora"),
    ],
)
def test_a_bad_field_is_named_in_one_line(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named} ") as caught:
        Deployment(**{"model": "preset:llama", **fields})
    assert "\n" not in str(caught.value)
