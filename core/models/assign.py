"""Weights into a model that lies on the meta device: each tensor once, never two copies."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphkiln.core.errors import ModelError, UnsupportedModel, WeightsDamaged
from graphkiln.core.models.served import Weightless
from graphkiln.core.models.weights import StoredTensor

# Where a model's tensor comes from: its name, its shape and dtype on the meta device -> the tensor.
Give = Callable[[str, torch.Tensor], torch.Tensor]


class NeedsConversion(Exception):
    """The names in the files are not the model's: transformers' own loader has to convert them."""


def assign_stored(ref: str, model: Any, stored: Mapping[str, StoredTensor]) -> None:
    """Puts the stored tensors into `model`, as mapped files where the dtype is the model's.

    Raises NeedsConversion when names do not match, WeightsDamaged when a shape does not.
    """
    wanted = model.state_dict(keep_vars=True)
    missing = wanted.keys() - stored.keys()
    if missing - _may_be_missing(model, stored.keys()):
        raise NeedsConversion(sorted(missing)[0])
    for name, tensor in wanted.items():
        if name in stored and stored[name].shape != tuple(tensor.shape):
            raise WeightsDamaged(
                ref,
                f"{name} in {stored[name].file.name} is {list(stored[name].shape)}, "
                f"config.json asks for {list(tensor.shape)}",
                "use the config.json that belongs to these weights",
            )
    with StoredFiles(ref) as files:
        _assign(
            model, lambda name, like: files.tensor(stored[name], name).to(like.dtype), wanted.keys() - missing
        )
    model.tie_weights(missing_keys=set(missing), recompute_mapping=False)
    _finish(ref, model)


def assign_random(ref: str, model: Any, seed: int) -> None:
    """Fills `model` from a seed: the same bits on every machine, whatever the order of the parameters."""
    std = initializer_range(model)
    _assign_all(ref, model, lambda name, like: random_tensor(f"{seed}:{name}", like, std))


def initializer_range(model: Any) -> float:
    """Returns the deviation of a model's random weights."""
    stated = (getattr(model.config, name, None) for name in ("initializer_range", "init_std"))
    return next((float(value) for value in stated if value), 0.02)


def assign_fake(ref: str, model: Any, device: torch.device) -> Weightless:
    """Gives `model` fake tensors on `device`: shapes enough to trace, and no memory.

    Returns their mode and the buffers that no file holds, computed on the CPU as they are for any build.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(like: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)

    _assign_all(ref, model, lambda name, like: fake(like))
    buffers = {}
    for prefix, module in model.base_model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and not isinstance(buffer, FakeTensor):
                buffers[f"{prefix}.{key}" if prefix else key] = buffer
                module._buffers[key] = fake(buffer)
    return Weightless(mode, buffers)


def _assign_all(ref: str, model: Any, give: Give) -> None:
    names = model.state_dict(keep_vars=True).keys()
    missing = names & _tied(model).keys()
    _assign(model, give, names - missing)
    model.tie_weights(missing_keys=set(missing), recompute_mapping=False)
    _finish(ref, model)


def _tied(model: Any) -> dict[str, str]:
    tied: dict[str, str] = model.all_tied_weights_keys
    return tied


def _may_be_missing(model: Any, stored: Any) -> set[str]:
    """The tied names whose partner is stored: tying fills them, in either direction."""
    pairs = _tied(model).items()
    return {target for target, source in pairs if source in stored} | {
        source for target, source in pairs if target in stored
    }


def _assign(model: nn.Module, give: Give, names: Any) -> None:
    for prefix, module in model.named_modules():
        for kind in (module._parameters, module._buffers):
            for key, tensor in kind.items():
                name = f"{prefix}.{key}" if prefix else key
                if tensor is not None and name in names:
                    given = give(name, tensor)
                    is_parameter = kind is module._parameters
                    kind[key] = nn.Parameter(given, requires_grad=False) if is_parameter else given


def _finish(ref: str, model: Any) -> None:
    """Computes the buffers that no file holds (rotary frequencies), and checks that nothing is left out."""
    for prefix, module in model.named_modules():
        lacking = [
            key
            for key, buffer in module._buffers.items()
            if buffer is not None and key in module._non_persistent_buffers_set and buffer.is_meta
        ]
        if lacking:
            _compute_buffers(ref, model, prefix, module, lacking)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ModelError(
                ref, f"{name} is in no weight file", "use the weights that belong to this config.json"
            )


def _compute_buffers(ref: str, model: Any, prefix: str, module: nn.Module, names: list[str]) -> None:
    for name in names:
        module._buffers[name] = _unwritten(module._buffers[name])
    # transformers' initialisers leave alone what carries this mark.
    for tensor in [*module._parameters.values(), *module._buffers.values()]:
        if tensor is not None and not any(tensor is module._buffers[name] for name in names):
            tensor._is_hf_initialized = True  # type: ignore[attr-defined]
    with torch.no_grad():
        _owner(model, prefix)._init_weights(module)
    for name in names:
        buffer = module._buffers[name]
        if buffer is not None and buffer.is_floating_point() and torch.isnan(buffer).any():
            raise UnsupportedModel(
                ref,
                f"nothing in transformers computes the buffer {prefix}.{name}",
                "write the model as a module and give it as module:factory",
            )


def _unwritten(like: torch.Tensor | None) -> torch.Tensor:
    """A tensor on the CPU in which a value that nobody wrote can be recognised."""
    assert like is not None
    fill = float("nan") if like.is_floating_point() else 0
    return torch.full_like(like, fill, device="cpu")


def _owner(model: Any, prefix: str) -> Any:
    """The nearest transformers model around a module: it knows how its modules are initialised."""
    while prefix:
        prefix = prefix.rpartition(".")[0]
        module = model.get_submodule(prefix)
        if hasattr(module, "_init_weights"):
            return module
    return model


def random_tensor(key: str, like: torch.Tensor, std: float) -> torch.Tensor:
    """Returns the random weight of a name: shape and dtype of `like`, uniform with deviation `std`."""
    # Integers and exact scaling only: torch.normal_ gives other bits on other instruction sets.
    generator = torch.Generator().manual_seed(
        int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    )
    steps = torch.randint(-(1 << 23), 1 << 23, like.shape, generator=generator, dtype=torch.int32)
    uniform = steps.to(torch.float32).mul_(2.0**-23)
    if like.dim() < 2:
        is_scale = key.endswith(".weight")
        return (uniform.mul_(0.125).add_(1.0) if is_scale else uniform.mul_(0.0625)).to(like.dtype)
    return uniform.mul_(std * 3**0.5).to(like.dtype)


class StoredFiles(contextlib.AbstractContextManager["StoredFiles"]):
    """Safetensors files, each opened once and mapped."""

    def __init__(self, ref: str) -> None:
        self._ref = ref
        self._stack = contextlib.ExitStack()
        self._open: dict[Path, Any] = {}

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def tensor(self, stored: StoredTensor, name: str) -> torch.Tensor:
        """Returns a view of the mapped file; raises WeightsDamaged when it cannot be read."""
        with self._named(stored.file):
            if stored.file not in self._open:
                self._open[stored.file] = self._stack.enter_context(safe_open(stored.file, framework="pt"))
            tensor: torch.Tensor = self._open[stored.file].get_tensor(name)
            return tensor

    @contextlib.contextmanager
    def _named(self, file: Path) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, OSError) as error:
            raise WeightsDamaged(
                self._ref, f"{file.name} cannot be read: {error}", "copy the file again from where it came"
            ) from error
