"""What a model reference means: read from its config, before anything is imported or built."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from graphkiln.core.deployment import DTYPES, Deployment
from graphkiln.core.errors import ModelError, UnsupportedModel
from graphkiln.core.models.architecture import Architecture, find_architecture
from graphkiln.core.models.hub import cached_name, complete_weights, config_folder, is_hub_id
from graphkiln.core.models.presets import PRESETS
from graphkiln.core.models.weights import StoredTensor, stored_tensors, weights_dtype

Kind = Literal["folder", "hub", "preset", "factory"]

# They say where a config came from or which dtype its weights have, never what the model computes.
_NOT_CONTENT = ("_name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype")
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class ModelSource:
    """A model reference with its facts: what to build, in which dtype, up to which length.

    `config` is the content of config.json without the keys that say where it came from; `dtype` is
    never "auto"; `path` is the folder as it was named, its links not followed, and for a hub id that of
    its commit; None for presets and factories. `architecture` is None for factories.
    """

    kind: Kind
    label: str
    config: Mapping[str, Any]
    dtype: str
    path: Path | None
    max_model_len: int
    architecture: Architecture | None = field(default=None, compare=False)


def identify(deployment: Deployment) -> ModelSource:
    """Returns what `deployment.model` refers to; imports neither torch nor transformers.

    The config of a hub id that is not cached is downloaded. Raises ModelError (no such folder or model,
    no config.json, bad JSON, a length beyond the model's) and UnsupportedModel (unknown architecture,
    attention that cannot be replaced).
    """
    ref = deployment.model
    _refuse_what_is_not_built(deployment)
    if ref.startswith("preset:"):
        return _preset(ref, deployment)
    if _FACTORY.fullmatch(ref) and not os.path.exists(ref):
        return _factory(ref, deployment)
    return _folder(ref, deployment)


def stop_ids(source: ModelSource) -> tuple[int, ...]:
    """Returns the tokens at which generation ends: those of generation_config.json, else of config.json."""
    given: Any = source.config.get("eos_token_id")
    if source.path is not None:
        given = _generation_config(source.path).get("eos_token_id", given)
    if isinstance(given, int):
        return (given,)
    return tuple(int(token) for token in given or ())


def stored_weights(source: ModelSource, ref: str) -> dict[str, StoredTensor]:
    """Returns every tensor of a folder's weights by name; what a hub id lacks of them is downloaded.

    Raises ModelError when there are none, WeightsDamaged for files that are not what they should be.
    """
    assert source.path is not None
    if source.kind == "hub":
        complete_weights(ref, source.path)
    return stored_tensors(ref, source.path)


def _generation_config(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _refuse_what_is_not_built(deployment: Deployment) -> None:
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        size = getattr(deployment, name)
        if size != 1:
            raise UnsupportedModel(deployment.model, f"{name} is {size}: one rank is served so far", "use 1")
    if deployment.enable_lora:
        raise UnsupportedModel(
            deployment.model, "LoRA is not served so far", "merge the adapter into the weights"
        )
    if deployment.num_speculative_tokens:
        raise UnsupportedModel(
            deployment.model,
            f"num_speculative_tokens is {deployment.num_speculative_tokens}: not served so far",
            "use 0",
        )


def _preset(ref: str, deployment: Deployment) -> ModelSource:
    name = ref.partition(":")[2]
    preset = PRESETS.get(name)
    if preset is None:
        raise ModelError(
            ref, f"no such preset; there are {', '.join(PRESETS)}", f"use preset:{next(iter(PRESETS))}"
        )
    if deployment.load_format == "safetensors":
        raise ModelError(ref, "a preset has no weight files to load", "use --load-format dummy, or auto")
    config = _content(preset)
    return ModelSource(
        "preset",
        ref,
        config,
        DTYPES[deployment.dtype] if deployment.dtype != "auto" else "float32",
        None,
        _max_model_len(ref, config, deployment.max_model_len),
        find_architecture(ref, config),
    )


def _factory(ref: str, deployment: Deployment) -> ModelSource:
    module = ref.partition(":")[0]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ModelError(
            ref,
            f"there is no module {module!r}, and no folder of that name",
            "run where the module can be imported (PYTHONPATH), or give a folder with config.json",
        )
    return ModelSource(
        "factory",
        ref,
        {"factory": ref},
        DTYPES[deployment.dtype] if deployment.dtype != "auto" else "float32",
        None,
        deployment.max_model_len or deployment.max_num_batched_tokens,
    )


def _folder(ref: str, deployment: Deployment) -> ModelSource:
    # os.path answers "no" where pathlib raises: an unknown ~user, a name that is too long.
    path = Path(os.path.abspath(os.path.expanduser(ref)))
    from_hub = not os.path.exists(path) and is_hub_id(ref)
    if from_hub:
        path = config_folder(ref)
    elif not os.path.exists(path):
        raise ModelError(ref, "no such folder", "give a folder with config.json, or org/name of the Hub")
    if not os.path.isdir(path):
        raise ModelError(
            ref, "is a file, not a folder", "give the folder that holds config.json and the weights"
        )
    config = _read_config(ref, path / "config.json")
    architecture = find_architecture(ref, config)
    asked = DTYPES[deployment.dtype]
    return ModelSource(
        "hub" if from_hub else "folder",
        ref if from_hub else cached_name(path) or path.name,
        _content(config),
        asked if asked != "auto" else _own_dtype(ref, path, config, from_hub),
        path,
        _max_model_len(ref, config, deployment.max_model_len),
        architecture,
    )


def _read_config(ref: str, path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(ref, "has no config.json", "give a folder written by save_pretrained") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(ref, f"config.json cannot be read: {error}", "check the file") from None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ModelError(
            ref, f"config.json is not JSON: {error}", "restore the file from where it came"
        ) from None
    if not isinstance(config, dict):
        raise ModelError(ref, "config.json is not an object", "restore the file from where it came")
    return config


def _content(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _content(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _NOT_CONTENT
    }


def _own_dtype(ref: str, path: Path, config: Mapping[str, Any], from_hub: bool) -> str:
    """The dtype that config.json states, else that of the first weight, else float32."""
    stated = config.get("dtype", config.get("torch_dtype"))
    if isinstance(stated, str):
        dtype = DTYPES.get(stated.removeprefix("torch."))
        if dtype is None or dtype == "auto":
            raise UnsupportedModel(
                ref, f"config.json states dtype {stated!r}", "give --dtype float32 or bfloat16"
            )
        return dtype
    if from_hub:
        complete_weights(ref, path)
    return weights_dtype(ref, path) or "float32"


def _max_model_len(ref: str, config: Mapping[str, Any], asked: int | None) -> int:
    lengths = [config[key] for key in _LENGTH_KEYS if isinstance(config.get(key), int)]
    if not lengths:
        if asked is None:
            raise ModelError(ref, "config.json states no maximum length", "give --max-model-len")
        return asked
    if asked is not None and asked > lengths[0]:
        raise ModelError(
            ref, f"max_model_len {asked} is more than the model's {lengths[0]}", f"use at most {lengths[0]}"
        )
    return asked if asked is not None else lengths[0]
