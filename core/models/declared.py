"""The attention layers that a factory's module declares: what no graph says of them, and a kernel needs.

A graph shows heads and sizes, and neither windows nor softcaps: with other ones a kernel would be another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.traced import layer_differences
from graphkiln.core.errors import ModelError
from graphkiln.core.ops.layer import AttentionLayer

ATTRIBUTE = "attention_layers"
_SIZES = ("heads", "kv_heads", "head_size", "value_size")


def declared_layers(ref: str, module: nn.Module) -> tuple[AttentionLayer, ...]:
    """Returns the `attention_layers` of a module, () where it has none. Raises ModelError for wrong ones."""
    given: Any = getattr(module, ATTRIBUTE, ())
    layers = tuple(given) if isinstance(given, (list, tuple)) else ()
    # What a model calls so may be something of its own.
    if not any(isinstance(layer, AttentionLayer) for layer in layers):
        return ()
    wrong = next((found for layer in layers if (found := _wrong(layer))), None)
    names = [layer.name for layer in layers if isinstance(layer, AttentionLayer)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if wrong is not None or twice is not None:
        what = wrong or f"the name {twice!r} twice"
        raise ModelError(ref, f"its {ATTRIBUTE} have {what}", "say what each layer is, by its own name")
    return layers


def _wrong(layer: object) -> str | None:
    """Returns what no layer can be, as something that a list of layers has; None for a layer."""
    if not isinstance(layer, AttentionLayer):
        return f"a {type(layer).__name__} among them"
    name = f"{layer.name!r}"
    if not isinstance(layer.name, str) or not layer.name:
        return f"one by the name {name}"
    if not all(type(size) is int and size > 0 for size in (getattr(layer, one) for one in _SIZES)):
        return f"{name}, whose heads or sizes are no counts"
    if layer.heads % layer.kv_heads:
        return f"{name}, whose {layer.heads} heads cannot share {layer.kv_heads} key heads evenly"
    if layer.window is not None and not (type(layer.window) is int and layer.window > 0):
        return f"{name} with a window of {layer.window!r} keys"
    if not _is_number(layer.scale):
        return f"{name} with a scale of {layer.scale!r}"
    if layer.softcap is not None and not (_is_number(layer.softcap) and layer.softcap > 0):
        return f"{name} with a softcap of {layer.softcap!r}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def layer_facts(layers: Sequence[AttentionLayer]) -> dict[str, dict[str, Any]]:
    """Returns by layer what its kernels are compiled for; the scale and a softcap come with each call."""
    return {
        layer.name: {
            **{name: getattr(layer, name) for name in _SIZES},
            "window": layer.window,
            "softcap": layer.softcap is not None,
        }
        for layer in layers
    }


def check_layers(then: Mapping[str, Any], layers: Sequence[AttentionLayer]) -> list[Difference]:
    """Returns how a model's declared layers differ from those that a part was compiled with, fact by fact."""
    return [*layer_differences(then, layer_facts(layers))]
