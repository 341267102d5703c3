"""What each attention layer of a model passes to its attention function, found by one run on shapes.

The run is on the meta device: no weights are needed and no numbers are computed. Module attributes
are not asked: what a layer passes is what counts (mistral's window and opt's scale are found only so).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from graphkiln.core.errors import UnsupportedModel
from graphkiln.core.models.bridge import name_layer
from graphkiln.core.models.experts import TRACEABLE, experts_used
from graphkiln.core.models.mask import describes
from graphkiln.core.ops.layer import AttentionLayer

_PROBE_NAME = "graphkiln_probe"
_PROBE_TOKENS = 7
_REMEDY = "write the model as a module with the attention ops and give it as module:factory"

_CARRIED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

# Keyword arguments that change nothing in what attention computes over one batch of tokens.
_NO_EFFECT = frozenset(
    {
        "position_ids",
        "use_cache",
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
    }
)


def probe(ref: str, model: Any) -> tuple[AttentionLayer, ...]:
    """Returns the attention layers of `model`, which lies on the meta device, and names them.

    Raises UnsupportedModel, naming the layer and the argument, for what the ops do not carry.
    """
    _check_kinds(ref, model)
    recorder = _Recorder(ref, model.base_model)
    with _recording(model, recorder), torch.no_grad():
        tokens = torch.zeros(1, _PROBE_TOKENS, dtype=torch.int64, device="meta")
        try:
            # The attention mask of ones keeps transformers from looking for packed sequences in position_ids.
            model.base_model(
                input_ids=tokens, position_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False
            )
        except UnsupportedModel:
            raise
        except Exception as error:
            raise UnsupportedModel(
                ref,
                f"its forward cannot be run on shapes: {type(error).__name__}: {_first_line(error)}",
                _REMEDY,
            ) from error
    layers = tuple(recorder.layers.values())
    _check_count(ref, model, layers)
    return layers


def _check_kinds(ref: str, model: Any) -> None:
    """Refuses a model that keeps anything from token to token besides keys and values."""
    kinds = sorted(
        set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - _CARRIED_LAYER_TYPES
    )
    if kinds:
        raise UnsupportedModel(ref, f"it has layers of type {kinds[0]}, which are not carried", _REMEDY)
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(ref, "it keeps a state besides keys and values, which is not carried", _REMEDY)


def _check_count(ref: str, model: Any, layers: tuple[AttentionLayer, ...]) -> None:
    if not layers:
        raise UnsupportedModel(ref, f"no attention of {type(model).__name__} reached the bridge", _REMEDY)
    count = getattr(model.config.get_text_config(), "num_hidden_layers", len(layers))
    if len(layers) < count:
        raise UnsupportedModel(
            ref, f"only {len(layers)} of its {count} layers have attention that reached the bridge", _REMEDY
        )


class _Recorder:
    """Stands in for attention and for the mask function during the probe, and keeps what it is given."""

    def __init__(self, ref: str, base_model: nn.Module) -> None:
        self.layers: dict[nn.Module, AttentionLayer] = {}
        self._ref = ref
        self._names = {module: name for name, module in base_model.named_modules()}
        self._masks: dict[int, tuple[torch.Tensor, Any]] = {}

    def mask(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        mask = torch.empty(1, 1, _PROBE_TOKENS, _PROBE_TOKENS, device="meta")
        self._masks[id(mask)] = (mask, kwargs.get("mask_function"))
        return mask

    def attention(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        name = self._names.get(module, type(module).__name__)
        if module in self.layers:
            raise self._refused(name, "runs more than once in a forward")
        self._check_shapes(name, module, query, key, value)
        scale = kwargs.pop("scaling", None)
        window = kwargs.pop("sliding_window", None)
        softcap = kwargs.pop("softcap", None)
        self._check_rest(name, kwargs)
        self._check_mask(name, attention_mask, window)
        self.layers[module] = AttentionLayer(
            name=name,
            heads=query.shape[1],
            kv_heads=key.shape[1],
            head_size=query.shape[3],
            value_size=value.shape[3],
            scale=float(query.shape[3] ** -0.5 if scale is None else scale),
            window=None if window is None else int(window),
            softcap=None if softcap is None else float(softcap),
        )
        name_layer(module, name)
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3]), None

    def _check_shapes(
        self, name: str, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        if not getattr(module, "is_causal", True):
            raise self._refused(name, "is not causal")
        if query.shape[2] != key.shape[2] or key.shape[:3] != value.shape[:3] or query.shape[0] != 1:
            raise self._refused(name, "has queries and keys of different tokens (cross attention?)")
        if query.shape[1] % key.shape[1]:
            raise self._refused(name, f"has {query.shape[1]} heads over {key.shape[1]} key heads")

    def _check_rest(self, name: str, kwargs: dict[str, Any]) -> None:
        if kwargs.pop("dropout", 0.0):
            raise self._refused(name, "passes a dropout")
        if kwargs.pop("is_causal", None) is False:
            raise self._refused(name, "is not causal")
        for argument, value in kwargs.items():
            if value is not None and argument not in _NO_EFFECT:
                raise self._refused(name, f"passes {argument}")

    def _check_mask(self, name: str, mask: torch.Tensor | None, window: int | None) -> None:
        if mask is None:
            return
        _, function = self._masks.get(id(mask), (None, None))
        if function is None:
            raise self._refused(name, "passes a mask that the model makes itself")
        if not describes(function, window):
            expected = "the causal mask" if window is None else f"the causal mask with a window of {window}"
            raise self._refused(name, f"passes a mask that is not {expected}")

    def _refused(self, layer: str, what: str) -> UnsupportedModel:
        return UnsupportedModel(
            self._ref, f"its attention layer {layer} {what}, which is not carried", _REMEDY
        )


@contextlib.contextmanager
def _recording(model: Any, recorder: _Recorder) -> Iterator[None]:
    """Inside, the attention and the masks of `model` go to `recorder`."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(_PROBE_NAME, recorder.attention)
    AttentionMaskInterface.register(_PROBE_NAME, recorder.mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(_PROBE_NAME)
    try:
        # The other ways look at numbers, which shapes do not have.
        with experts_used(model, TRACEABLE):
            yield
    finally:
        model.set_attn_implementation(before)
        # No name may stay behind that a later config could ask for.
        AttentionInterface._global_mapping.pop(_PROBE_NAME, None)
        AttentionMaskInterface._global_mapping.pop(_PROBE_NAME, None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
