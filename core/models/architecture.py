"""Which class of transformers a config.json asks for, found by reading files and importing nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.core.errors import ModelError, UnsupportedModel

# A text decoder with a head that gives logits; other endings are classifiers, encoders or pictures.
_SERVED_ENDINGS = ("ForCausalLM", "LMHeadModel")

# transformers recomputes their frequencies from the positions of each call.
_LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")


@dataclass(frozen=True)
class Architecture:
    """The modeling class that a model is built from, the module that holds it, whether that has experts."""

    name: str
    module: str
    experts: bool = False


def find_architecture(ref: str, config: Mapping[str, Any]) -> Architecture:
    """Returns the class that `config` asks for.

    Raises UnsupportedModel when transformers has no such class, when it is not a causal language
    model, or when its attention cannot be replaced.
    """
    name = _asked_name(ref, config)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelError(ref, "config.json has no model_type", "use a config.json written by transformers")
    models = _transformers_models(ref)
    for package in _packages(models, model_type):
        path = models / package / f"modeling_{package}.py"
        source = _read(path)
        if re.search(rf"^class {re.escape(name)}\(", source, re.MULTILINE):
            _check_attention(ref, name, source)
            _check_rotary(ref, config)
            # transformers looks for this in the same way to decide whether their computation can be chosen.
            experts = "@use_experts_implementation" in source
            return Architecture(name, f"transformers.models.{package}.modeling_{package}", experts)
    raise UnsupportedModel(
        ref,
        f"transformers {_version()} has no {name} (model type {model_type!r})",
        "upgrade transformers, or write the model as a module and give it as module:factory",
    )


def _asked_name(ref: str, config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(
            ref, "config.json names no architectures", 'add e.g. "architectures": ["LlamaForCausalLM"]'
        )
    name: str = names[0]
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ModelError(
            ref, f"config.json names the architecture {name!r}", "correct the name in config.json"
        )
    if not name.endswith(_SERVED_ENDINGS):
        raise UnsupportedModel(
            ref,
            f"{name} is not a causal language model",
            "only decoders that give next-token logits are served",
        )
    if "quantization_config" in config:
        raise UnsupportedModel(
            ref, "its weights are quantised", "use the original weights, or dequantise and save them again"
        )
    return name


def _transformers_models(ref: str) -> Path:
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(ref, "transformers is not installed", "pip install transformers")
    return Path(spec.submodule_search_locations[0]) / "models"


def _packages(models: Path, model_type: str) -> list[str]:
    """The folders that may hold a model type: its own name, then the one that transformers maps it to."""
    names = [model_type.replace("-", "_")]
    for table in ("auto_mappings.py", "configuration_auto.py"):
        _, _, special = _read(models / "auto" / table).partition("SPECIAL_MODEL_TYPE_TO_MODULE_NAME")
        mapped = re.search(rf'"{re.escape(model_type)}"[,:]\s*"(\w+)"', special)
        if mapped:
            names.append(mapped[1])
    return [name for name in names if re.fullmatch(r"\w+", name)]


def _check_attention(ref: str, name: str, source: str) -> None:
    # transformers reads its source in the same way to decide whether attention can be replaced.
    own_attention = re.search(r"^class \w*Attention\w*\(nn\.Module\):", source, re.MULTILINE)
    if own_attention and "ALL_ATTENTION_FUNCTIONS" not in source:
        raise UnsupportedModel(
            ref,
            f"the attention of {name} cannot be replaced (it does not use transformers' attention interface)",
            "write the model as a module with the attention ops and give it as module:factory",
        )


def _check_rotary(ref: str, config: Mapping[str, Any]) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # Some models have one set of parameters for each type of layers.
    sets = [rope, *rope.values()] if isinstance(rope, Mapping) else []
    kinds = [part.get("rope_type", part.get("type")) for part in sets if isinstance(part, Mapping)]
    kind = next((kind for kind in kinds if kind in _LENGTH_DEPENDENT_ROPES), None)
    if kind is not None:
        raise UnsupportedModel(
            ref,
            f"its rotary frequencies follow the longest request (rope type {kind!r}), no graph can hold them",
            "set a rope type with fixed frequencies in config.json, e.g. yarn, if the model allows it",
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _version() -> str:
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"
