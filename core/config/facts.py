"""What a resolution depends on beside the configuration: the device, the limits, and the kind of model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from graphkiln.cache.factors.env import read
from graphkiln.core.deployment import Deployment

Device = Literal["cpu", "cuda"]
Quantisation = Literal["none", "fp8_block", "fp8", "nvfp4"]

_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Facts:
    """Everything that `resolve` looks at and the user's configuration does not hold.

    `capability` is 90 for compute capability 9.0. `draft_schedule` has rows (first batch size, last
    batch size, draft tokens). `breakable` is the user's word on breakable CUDA graphs, None when he
    said nothing. `captures_stock_compile` says that the runner can capture around a model that
    torch.compile runs by itself; ours cannot.
    """

    device: Device
    max_num_batched_tokens: int
    max_num_seqs: int
    num_speculative_tokens: int = 0
    draft_schedule: tuple[tuple[int, int, int], ...] = ()
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    all2all_backend: str | None = None
    architecture: str = ""
    quantisation: Quantisation = "none"
    hidden_size: int | None = None
    item_size: int = 2
    encoder_decoder: bool = False
    pooling: bool = False
    moe: bool = False
    capability: int | None = None
    flashinfer: bool = False
    batch_invariant: bool = False
    breakable: bool | None = None
    compile_disabled: bool = False
    captures_stock_compile: bool = False

    @property
    def static_graphs(self) -> bool:
        """Whether the device can replay a captured graph."""
        return self.device == "cuda"

    @property
    def blackwell(self) -> bool:
        """Whether the capability is one of the 10.x family."""
        return self.capability is not None and self.capability // 10 == 10

    @property
    def decode_length(self) -> int:
        """Tokens of one request in a step of uniform decode."""
        return 1 + self.num_speculative_tokens


def deployment_facts(
    deployment: Deployment, config: Mapping[str, Any], dtype: str, device: Device = "cpu"
) -> Facts:
    """Returns the facts of a deployment; `config` is the content of its config.json, or nothing known.

    `device` is that of the target, which is not looked up here: it takes torch to know the one here.
    """
    return Facts(
        device=device,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        max_num_seqs=deployment.max_num_seqs,
        num_speculative_tokens=deployment.num_speculative_tokens,
        tensor_parallel_size=deployment.tensor_parallel_size,
        data_parallel_size=deployment.data_parallel_size,
        item_size=_ITEM_SIZES.get(dtype, 4),
        # What torch itself obeys: it then compiles nothing, whatever is asked.
        compile_disabled=os.environ.get("TORCH_COMPILE_DISABLE") == "1",
        breakable=read("GRAPHKILN_BREAKABLE_GRAPHS"),
        **model_facts(config),
    )


def model_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts about a model that the content of its config.json tells."""
    architectures = config.get("architectures")
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    hidden = text.get("hidden_size", text.get("n_embd"))
    counts = [text.get(name) for name in _EXPERT_COUNTS]
    return {
        "architecture": str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        "quantisation": _quantisation(config.get("quantization_config")),
        "hidden_size": hidden if isinstance(hidden, int) else None,
        "encoder_decoder": config.get("is_encoder_decoder") is True,
        "moe": any(isinstance(count, int) and count > 1 for count in counts),
    }


def _quantisation(given: object) -> Quantisation:
    if not isinstance(given, Mapping):
        return "none"
    method = str(given.get("quant_method", given.get("quant_algo", ""))).lower()
    if "nvfp4" in (method, str(given.get("quant_algo", "")).lower()):
        return "nvfp4"
    if method != "fp8":
        return "none"
    return "fp8_block" if given.get("weight_block_size") else "fp8"
