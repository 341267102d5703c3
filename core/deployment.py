"""What a user asks for: a model, its limits and where it will run."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = {
    "auto": "auto",
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}
LOAD_FORMATS = ("auto", "safetensors", "dummy")
DEVICES = ("cpu", "cuda")

_AT_LEAST_ONE = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)
_MAX_NUM_SEQS = 128
# Sizes and positions are told in 32 bits to some kernels, and nothing serves as many.
_MOST = 2**31 - 1
_AT_LEAST_ZERO = ("num_speculative_tokens", "seed")


@dataclass(frozen=True)
class Deployment:
    """A request to serve `model`, as typed: nothing in it has been looked up yet.

    `model` is a folder with config.json and safetensors, `org/name` of the Hugging Face Hub (with
    `@revision` if not main), `preset:NAME`, or `module:factory`.
    `max_model_len` None means the model's own limit; `dtype` "auto" means the dtype of its
    weights; `max_num_seqs` unset means 128, or the tokens of a step where they are fewer. Bad
    values are `ValueError`, one line that names the field.
    """

    model: str
    dtype: str = "auto"
    max_num_batched_tokens: int = 2048
    # None until __post_init__, which knows the token limit.
    max_num_seqs: int = None  # type: ignore[assignment]
    max_model_len: int | None = None
    block_size: int = 16
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_lora: bool = False
    num_speculative_tokens: int = 0
    target: str | None = None
    device: str | None = None
    load_format: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        _check_text(self)
        if self.max_num_seqs is None:
            _check_integer("max_num_batched_tokens", self.max_num_batched_tokens, least=1)
            object.__setattr__(self, "max_num_seqs", min(_MAX_NUM_SEQS, self.max_num_batched_tokens))
        for name in _AT_LEAST_ONE:
            _check_integer(name, getattr(self, name), least=1)
        for name in _AT_LEAST_ZERO:
            _check_integer(name, getattr(self, name), least=0)
        if self.max_model_len is not None:
            _check_integer("max_model_len", self.max_model_len, least=1)
        if not isinstance(self.enable_lora, bool):
            raise ValueError(f"enable_lora must be true or false, not {self.enable_lora!r}")


def _check_text(deployment: Deployment) -> None:
    if not isinstance(deployment.model, str) or not deployment.model.strip():
        raise ValueError(
            "model must name a folder, org/name of the Hub, preset:NAME or module:factory, and is empty"
        )
    _check_choice("dtype", deployment.dtype, tuple(DTYPES))
    _check_choice("load_format", deployment.load_format, LOAD_FORMATS)
    if deployment.device is not None:
        _check_choice("device", deployment.device, DEVICES)
    if deployment.target is not None and not deployment.target.strip():
        raise ValueError("target must name a device and is empty")
    if deployment.target is not None and deployment.device is not None:
        raise ValueError(
            f"device {deployment.device!r} and target {deployment.target!r} both say where to run: give one"
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def _check_integer(name: str, value: object, *, least: int) -> None:
    # bool is an int to Python, and `max_num_seqs=True` is a mistake, not a 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    if value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST}, not {value}")
