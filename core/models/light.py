"""A served model restored from its description: no transformers, no forward, the same tensors.

A start that finds its entry runs compiled pieces. What it needs of the model is its tensors under
their names, its attention layers' facts and its way from hidden states to logits. Importing
transformers for these takes longer than everything else that such a start does.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

# Registers the ops that compiled code calls.
import graphkiln.core.ops.attention  # noqa: F401
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.assign import StoredFiles, random_tensor
from graphkiln.core.models.backbone import Backbone
from graphkiln.core.models.logits import LogitsHead, MatrixHead, Step
from graphkiln.core.models.provenance import difference, provenance
from graphkiln.core.models.served import AttentionLayer, ServedModel, example_inputs
from graphkiln.core.models.source import ModelSource, stop_ids, stored_weights

_FORMAT = 2
_CPU = torch.device("cpu")
# Buffers that no file holds lie in the description; a model with larger ones is built instead.
_LARGEST_BUFFER_BYTES = 1 << 16


def describe(served: ServedModel) -> dict[str, Any] | None:
    """Returns what `restore` needs, as plain JSON, or None where the model has to be built each time.

    That is so for models of a factory, for weights that had to be converted, for logits that are more
    than one matrix, scales and softcaps away, and where modeling code was imported before the build.
    """
    head, origin = served.compute_logits, served.origin
    if origin is None or origin.finders is None or not isinstance(head, LogitsHead):
        return None
    base = served.backbone.get_submodule("model")
    prefix = head.prefix
    names = {id(tensor): name for name, tensor in head.tensors().items()}
    names |= {id(tensor): f"{prefix}.{name}" for name, tensor in base.named_parameters()}
    weightless = served.weightless
    logits = head.as_matrix(None if weightless is None else weightless.mode)
    known = {} if weightless is None else weightless.buffers
    buffers = {name: _packed(base, name, known.get(name, buffer)) for name, buffer in base.named_buffers()}
    if logits is None or any(packed is None for packed in buffers.values()):
        return None
    return {
        "format": _FORMAT,
        "provenance": provenance(origin.finders),
        "dtype": str(served.dtype).removeprefix("torch."),
        "vocab_size": served.vocab_size,
        "layers": [asdict(layer) for layer in served.layers],
        "parameters": {
            name: [names[id(tensor)], list(tensor.shape)]
            for name, tensor in base.named_parameters(remove_duplicate=False)
        },
        "buffers": buffers,
        "head": {
            "matrix": [names[id(logits.matrix)], list(logits.matrix.shape)],
            "before": [[step.name, step.operand] for step in logits.before],
            "after": [[step.name, step.operand] for step in logits.after],
        },
        "initializer_range": origin.initializer_range,
    }


def restore(
    source: ModelSource,
    deployment: Deployment,
    description: Mapping[str, Any],
    buffers: Mapping[str, torch.Tensor] | None = None,
    device: torch.device = _CPU,
) -> ServedModel | str:
    """Returns the served model of a description on `device`, or why it has to be built, as a clause.

    `buffers` are those that the description names; without it their elements lie in the description.
    The backbone has the class, the tensors and the names of the built one, and no forward that
    could be run. Raises WeightsDamaged and ModelError like a build.
    """
    if description.get("format") != _FORMAT:
        return f"its description has format {description.get('format')!r}, this version reads {_FORMAT}"
    if description["dtype"] != source.dtype:
        return f"it was described in {description['dtype']}"
    reason = difference(description["provenance"])
    if reason is not None:
        return reason
    dtype = getattr(torch, source.dtype)
    tensors = _tensors(source, deployment, description, dtype, device)
    if isinstance(tensors, str):
        return tensors
    base = nn.Module()
    for name, (stored, _) in description["parameters"].items():
        owner, leaf = _owner(base, name)
        owner.register_parameter(leaf, tensors[stored])
    if buffers is None:
        buffers = {name: unpacked(packed) for name, packed in description["buffers"].items()}
    reason = _strange(buffers, description["buffers"])
    if reason is not None:
        return reason
    for name, packed in description["buffers"].items():
        owner, leaf = _owner(base, name)
        owner.register_buffer(leaf, buffers[name].to(device), persistent=packed["persistent"])
    return ServedModel(
        backbone=Backbone(base).eval(),
        compute_logits=_head(description["head"], tensors),
        example_inputs=example_inputs(description["vocab_size"], source.max_model_len, device),
        layers=tuple(AttentionLayer(**layer) for layer in description["layers"]),
        vocab_size=description["vocab_size"],
        max_model_len=source.max_model_len,
        dtype=dtype,
        device=device,
        stop_ids=stop_ids(source),
        restored=True,
    )


def _strange(buffers: Mapping[str, torch.Tensor], described: Mapping[str, Any]) -> str | None:
    """Returns how buffers are not the described ones, as a clause."""
    if set(buffers) != set(described):
        return "its buffers are not those that it describes"
    for name, row in described.items():
        tensor = buffers[name]
        if [str(tensor.dtype), list(tensor.shape)] != [f"torch.{row['dtype']}", row["shape"]]:
            return f"buffer {name} is not as it describes it"
    return None


def _head(described: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> MatrixHead:
    before, after = (tuple(Step(*step) for step in described[when]) for when in ("before", "after"))
    return MatrixHead(tensors[described["matrix"][0]], before, after)


def _tensors(
    source: ModelSource,
    deployment: Deployment,
    description: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, nn.Parameter] | str:
    """Each tensor once, by its name in the files, or the reason why it cannot be had."""
    wanted = {name: tuple(shape) for name, shape in description["parameters"].values()}
    matrix, shape = description["head"]["matrix"]
    wanted[matrix] = tuple(shape)
    if source.path is None or deployment.load_format == "dummy":
        like = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in wanted.items()}
        given = {
            name: random_tensor(f"{deployment.seed}:{name}", meta, description["initializer_range"])
            for name, meta in like.items()
        }
    else:
        stored = stored_weights(source, deployment.model)
        for name, shape in wanted.items():
            if name not in stored or stored[name].shape != shape:
                return f"{name} is not in the weights as it was"
        with StoredFiles(deployment.model) as files:
            given = {name: files.tensor(stored[name], name).to(dtype) for name in wanted}
    return {name: nn.Parameter(tensor.to(device), requires_grad=False) for name, tensor in given.items()}


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds `name`, made on the way, and the last part of the name."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root, leaf


def _packed(root: nn.Module, name: str, buffer: torch.Tensor) -> dict[str, Any] | None:
    if buffer.nbytes > _LARGEST_BUFFER_BYTES:
        return None
    path, _, leaf = name.rpartition(".")
    return {
        "dtype": str(buffer.dtype).removeprefix("torch."),
        "shape": list(buffer.shape),
        "persistent": leaf not in root.get_submodule(path)._non_persistent_buffers_set,
        "base64": base64.b64encode(buffer.cpu().flatten().view(torch.uint8).numpy().tobytes()).decode(),
    }


def unpacked(packed: Mapping[str, Any]) -> torch.Tensor:
    """Returns a buffer of its dtype, shape and the base64 of its elements."""
    dtype = getattr(torch, packed["dtype"])
    data = bytearray(base64.b64decode(packed["base64"]))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(packed["shape"])
