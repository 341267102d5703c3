"""Models given as `module:factory`: a function of the user's that returns the module to compile."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import ModelError
from graphkiln.core.models.declared import declared_layers
from graphkiln.core.models.served import ServedModel, Weightless, without_values
from graphkiln.core.models.source import ModelSource
from graphkiln.core.trace.arguments import dynamic_dims

# Example token ids stay below this, so that a small embedding takes them.
_EXAMPLE_IDS = 8
# Torch lists every backend there is behind what it has to say.
_MOST_LETTERS = 300


def build_from_factory(
    source: ModelSource, deployment: Deployment, device: torch.device, *, fake: bool
) -> ServedModel:
    """Returns what the factory made, on `device`, in eval mode and without gradients.

    `fake` runs the factory under fake tensors: what it makes has shapes and no memory.

    The factory is called without arguments, or with `deployment=` if it has a parameter of that
    name. A method `example_inputs(num_tokens)` of the module gives example calls; without it each
    tensor argument of `forward` gets int64 [num_tokens]. A list `attention_layers` of AttentionLayer says
    what the layers are that it calls our attention ops for: the runner has a cache for each.
    """
    factory = _find(source.label)
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    with mode or contextlib.nullcontext(), device if fake else contextlib.nullcontext():
        module = _call(source.label, factory, deployment)
    if fake:
        _refuse_other_dtype(source.label, module, deployment, source.dtype)
    else:
        if deployment.dtype != "auto":
            module = module.to(getattr(torch, source.dtype))
        module = module.to(device) if device.type != "cpu" else module
    module.eval().requires_grad_(False)
    inputs = _example_inputs(source.label, module)
    if mode is not None and device.type != "cpu":
        inputs = _under(mode, inputs)
    first = next((p for p in [*module.parameters(), *module.buffers()] if p.is_floating_point()), None)
    return ServedModel(
        backbone=module,
        compute_logits=_identity,
        example_inputs=without_values(inputs, mode, device)
        if mode is not None
        else lambda count: _placed(inputs(count), device),
        layers=declared_layers(source.label, module),
        vocab_size=None,
        max_model_len=source.max_model_len,
        dtype=getattr(torch, source.dtype) if first is None else first.dtype,
        device=device,
        weightless=None if mode is None else Weightless(mode, {}),
    )


def _under(mode: FakeTensorMode, make: Callable[[int], tuple[Any, ...]]) -> Callable[[int], tuple[Any, ...]]:
    """What puts its tensors beside the module's own may be putting them on a device that is not here."""

    def made(num_tokens: int) -> tuple[Any, ...]:
        with mode:
            return make(num_tokens)

    return made


def _placed(values: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    return tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in values)


def _refuse_other_dtype(ref: str, module: nn.Module, deployment: Deployment, dtype: str) -> None:
    wanted = getattr(torch, dtype)
    if deployment.dtype != "auto" and any(
        tensor.dtype != wanted for tensor in module.parameters() if tensor.is_floating_point()
    ):
        raise ModelError(
            ref,
            f"without weights its tensors cannot be made {dtype} after it was built",
            "let the factory build it in that dtype (it may take deployment=), or use --weights load",
        )


def _find(ref: str) -> Callable[..., Any]:
    module_name, _, name = ref.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ModelError(
                ref, f"there is no module {error.name!r}", "run where it can be imported (PYTHONPATH)"
            ) from None
        raise ModelError(
            ref, f"importing {module_name} failed: {error}", "install what it imports"
        ) from error
    # SystemExit too: a script without a main guard ends the process when it is imported.
    except (Exception, SystemExit) as error:
        raise ModelError(
            ref,
            f"importing {module_name} failed: {type(error).__name__}: {error}",
            "make the module importable",
        ) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise ModelError(ref, f"module {module_name} has no {name!r}", "give the name of a function in it")
    if not callable(factory):
        raise ModelError(
            ref, f"{name!r} in {module_name} is not callable", "give a function that returns a module"
        )
    found: Callable[..., Any] = factory
    return found


def _call(ref: str, factory: Callable[..., Any], deployment: Deployment) -> nn.Module:
    wants_deployment = "deployment" in inspect.signature(factory).parameters
    try:
        module = factory(deployment=deployment) if wants_deployment else factory()
    except (Exception, SystemExit) as error:
        raise ModelError(
            ref, f"the factory failed: {type(error).__name__}: {error}", "make the factory return a module"
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            ref, f"the factory returned a {type(module).__name__}", "return a torch.nn.Module from it"
        )
    return module


def _example_inputs(ref: str, module: nn.Module) -> Callable[[int], tuple[Any, ...]]:
    own: Any = getattr(module, "example_inputs", None)
    if own is None:
        return _default_inputs(ref, module)

    def example_inputs(num_tokens: int) -> tuple[Any, ...]:
        try:
            return tuple(own(num_tokens))
        except (Exception, SystemExit) as error:
            raise ModelError(
                ref,
                f"its example_inputs({num_tokens}) failed: {type(error).__name__}: "
                f"{str(error)[:_MOST_LETTERS]}",
                "make it return the arguments of one call, as a tuple",
            ) from error

    return example_inputs


def _default_inputs(ref: str, module: nn.Module) -> Callable[[int], tuple[torch.Tensor, ...]]:
    try:
        count = len(dynamic_dims(type(module).forward, None))
    except ValueError as error:
        raise ModelError(
            ref, f"nothing says what a call of it looks like ({error})", "give it example_inputs(num_tokens)"
        ) from None

    def example_inputs(num_tokens: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.arange(num_tokens, dtype=torch.int64) % _EXAMPLE_IDS for _ in range(count))

    return example_inputs


def _identity(hidden: torch.Tensor) -> torch.Tensor:
    return hidden
