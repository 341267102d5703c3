"""From a model source to a model that can be compiled and served."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import ModelError, WeightsDamaged
from graphkiln.core.models.assign import (
    NeedsConversion,
    assign_fake,
    assign_random,
    assign_stored,
    initializer_range,
)
from graphkiln.core.models.backbone import Backbone
from graphkiln.core.models.bridge import name_layer, use_bridge
from graphkiln.core.models.experts import EAGER, TRACEABLE, use_experts
from graphkiln.core.models.factory import build_from_factory
from graphkiln.core.models.logits import LogitsHead
from graphkiln.core.models.probe import probe
from graphkiln.core.models.provenance import untouched
from graphkiln.core.models.served import (
    AttentionLayer,
    Origin,
    ServedModel,
    Weightless,
    example_inputs,
    without_values,
)
from graphkiln.core.models.source import ModelSource, stop_ids, stored_weights

CPU = torch.device("cpu")

Attention = Literal["paged", "eager"]
Weights = Literal["load", "none"]


def build(
    source: ModelSource,
    deployment: Deployment,
    *,
    attention: Attention = "paged",
    weights: Weights = "load",
    device: torch.device = CPU,
) -> ServedModel:
    """Returns the model, in eval mode, without gradients, on `device`.

    `attention` "eager" keeps transformers' own attention and experts, for comparison: causal over all
    tokens of a call. `weights` "none" reads no weights and takes no memory for them: enough to trace and
    compile, not to run. Raises ModelError, UnsupportedModel and WeightsDamaged.
    """
    if source.kind == "factory":
        return build_from_factory(source, deployment, device, fake=weights == "none")
    finders = untouched()
    dtype = getattr(torch, source.dtype)
    model = _on_meta(source, deployment.model, dtype).eval()
    layers = probe(deployment.model, model)
    weightless = None
    if weights == "none":
        mixed = bool(model._get_dtype_plan(getattr(torch, source.dtype)))
        kind = None if mixed else _kind(source, deployment)
        weightless = assign_fake(deployment.model, model, device)
    else:
        model, kind = _with_weights(source, deployment, model)
        model.to(device)
    if attention == "paged":
        _name_layers(model.base_model, layers)
        use_bridge(model)
        use_experts(model, TRACEABLE)
    else:
        model.set_attn_implementation("eager")
        use_experts(model, EAGER)
    model.eval().requires_grad_(False)
    origin = Origin(kind, finders, initializer_range(model)) if kind is not None else None
    return _served(source, model, layers if attention == "paged" else (), origin, device, weightless)


def _on_meta(source: ModelSource, ref: str, dtype: torch.dtype) -> Any:
    """The causal language model with shapes and no memory."""
    cls = _model_class(source)
    try:
        config = cls.config_class.from_dict(copy.deepcopy(dict(source.config)))
        with torch.device("meta"):
            return cls._from_config(config, dtype=dtype, attn_implementation="eager")
    except Exception as error:
        raise ModelError(
            ref,
            f"config.json does not describe a {cls.__name__}: {type(error).__name__}: {_one_line(error)}",
            "use the config.json that the model came with",
        ) from error


def _model_class(source: ModelSource) -> Any:
    # The class that identify found: transformers' own registry is not asked a second time.
    assert source.architecture is not None
    return getattr(importlib.import_module(source.architecture.module), source.architecture.name)


def _with_weights(
    source: ModelSource, deployment: Deployment, model: Any
) -> tuple[Any, Literal["stored", "random"] | None]:
    """The model with its tensors, and where they came from if they can be had again tensor by tensor."""
    ref = deployment.model
    dtype = getattr(torch, source.dtype)
    # Some models keep some of their tensors in float32, whatever the dtype of the rest.
    mixed = bool(model._get_dtype_plan(dtype))
    if _kind(source, deployment) == "random":
        assign_random(ref, model, deployment.seed)
        return model, None if mixed else "random"
    assert source.path is not None
    stored = stored_weights(source, ref)
    try:
        if mixed:
            raise NeedsConversion("some tensors stay in float32")
        assign_stored(ref, model, stored)
    except NeedsConversion:
        return _converted(ref, source.path, model, dtype), None
    return model, "stored"


def _kind(source: ModelSource, deployment: Deployment) -> Literal["stored", "random"]:
    """Where a model's tensors come from, as far as it can be told without reading any."""
    return "random" if source.path is None or deployment.load_format == "dummy" else "stored"


def _converted(ref: str, folder: Path, model: Any, dtype: torch.dtype) -> Any:
    """The model as transformers' own loader gives it, which knows how old and fused weights are renamed."""
    try:
        with _silent_transformers():
            loaded, info = type(model).from_pretrained(
                folder,
                config=copy.deepcopy(model.config),
                dtype=dtype,
                attn_implementation="eager",
                output_loading_info=True,
                local_files_only=True,
            )
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise WeightsDamaged(
            ref,
            f"transformers cannot load its weights: {_one_line(error)}",
            "check the weights and config.json",
        ) from error
    lacking = sorted(info["missing_keys"])
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise WeightsDamaged(
            ref,
            f"{lacking[0]}{more} is in no weight file",
            "use the weights that belong to this config.json",
        )
    return loaded


@contextlib.contextmanager
def _silent_transformers() -> Iterator[None]:
    """Inside, transformers neither draws progress nor logs: what is wrong is told by an error of ours."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]}..."


def _name_layers(base_model: Any, layers: tuple[AttentionLayer, ...]) -> None:
    for layer in layers:
        name_layer(base_model.get_submodule(layer.name), layer.name)


def _served(
    source: ModelSource,
    model: Any,
    layers: tuple[AttentionLayer, ...],
    origin: Origin | None,
    device: torch.device,
    weightless: Weightless | None,
) -> ServedModel:
    vocab_size = model.config.get_text_config().vocab_size
    base_model = model.base_model
    inputs = example_inputs(vocab_size, source.max_model_len, CPU if weightless else device)
    return ServedModel(
        backbone=Backbone(base_model).eval(),
        compute_logits=LogitsHead(model),
        example_inputs=without_values(inputs, weightless.mode, device) if weightless else inputs,
        layers=layers,
        vocab_size=vocab_size,
        max_model_len=source.max_model_len,
        dtype=getattr(torch, source.dtype),
        device=device,
        stop_ids=stop_ids(source),
        origin=origin,
        weightless=weightless,
    )
