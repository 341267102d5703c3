"""Which modules of a model are compiled parts, and what calls of them look like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphkiln.cache.store.manifest import PREFIX
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError, ModelError
from graphkiln.core.models.declared import declared_layers
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.forward_context import set_forward_context
from graphkiln.core.part import Part, arguments_like
from graphkiln.core.runner import dummy_context
from graphkiln.core.trace.decorator import serve_with, served_with

BACKBONE = "backbone"

Inputs = Callable[[int], Sequence[Any]]
Context = Callable[[int], contextlib.AbstractContextManager[Any]]


def find_parts(
    root: torch.nn.Module,
    config: CompilationConfig,
    inputs: Inputs,
    example_tokens: int,
    context: Context,
) -> list[Part]:
    """Returns the parts of a model: the root, or where it is ignored or not decorated, what is below it.

    A part inside another part is compiled with it. Parts below the root are named by their path, an
    encoder by its class; what calls of them look like is seen in one eager run of the root. A root
    without any decorated module is a part itself. `context` is what a call needs around it, by token
    count. Raises CompileError for a part that is never called, or whose path is no name for a folder,
    ModelError for a root that does not say where its tokens are.
    """
    layers = declared_layers(type(root).__qualname__, root)
    if _wanted(root, config):
        return [Part(BACKBONE, root, inputs, layers)]
    below = _below(root, config)
    if not below:
        return [_undecorated(Part(BACKBONE, root, inputs, layers))]
    with context(example_tokens):
        calls = _recorded(root, below, inputs(example_tokens))
    return [
        # Said once: they are of the model, and in the key whichever part calls them.
        Part(prefix, module, arguments_like(module, *calls[prefix]), () if place else layers)
        for place, (prefix, module) in enumerate(below.items())
    ]


def _undecorated(part: Part) -> Part:
    try:
        assert part.dynamic
    except ValueError as error:
        raise ModelError(
            type(part.module).__qualname__,
            f"nothing says which argument of its forward holds the tokens ({error})",
            "annotate that argument as torch.Tensor, or decorate the class",
        ) from None
    return part


def _wanted(module: torch.nn.Module, config: CompilationConfig) -> bool:
    kind: Any = type(module)
    if not getattr(kind, "_graphkiln_supported", False) or kind._graphkiln_ignored:
        return False
    return kind._graphkiln_enable_if is None or bool(kind._graphkiln_enable_if(config))


def _below(root: torch.nn.Module, config: CompilationConfig) -> dict[str, torch.nn.Module]:
    found: dict[str, torch.nn.Module] = {}
    taken: list[str] = []
    for path, module in root.named_modules():
        if not path or any(path.startswith(f"{outer}.") for outer in taken) or not _wanted(module, config):
            continue
        taken.append(path)
        kind: Any = type(module)
        prefix = kind.__name__ if kind._graphkiln_is_encoder else path
        if prefix in found:
            prefix = path
        if PREFIX.fullmatch(prefix) is None:
            raise CompileError(f"part {prefix}", "its path is no name for a folder", "rename the attribute")
        found[prefix] = module
    return found


def _recorded(
    root: torch.nn.Module, below: Mapping[str, torch.nn.Module], arguments: Sequence[Any]
) -> dict[str, tuple[Sequence[Any], Mapping[str, Any]]]:
    calls: dict[str, tuple[Sequence[Any], Mapping[str, Any]]] = {}

    def recorder(prefix: str, module: torch.nn.Module) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            calls.setdefault(prefix, (args, kwargs))
            return module.forward(*args, **kwargs)

        return record

    with contextlib.ExitStack() as served, torch.no_grad():
        for prefix, module in below.items():
            served.enter_context(served_with(module, recorder(prefix, module)))
        root.forward(*arguments)
    silent = next((prefix for prefix in below if prefix not in calls), None)
    if silent is not None:
        raise CompileError(f"part {silent}", "the model does not call it", "ignore it, or call it in forward")
    return calls


def forward_of(
    root: torch.nn.Module, parts: Sequence[Part], serve: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    """Returns the forward of a model whose parts are served by `serve`."""
    if parts[0].module is root:
        return serve[0]
    for part, forward in zip(parts, serve, strict=True):
        serve_with(part.module, forward)
    plain: Callable[..., Any] = root.forward
    return plain


def call_context(served: ServedModel, deployment: Deployment) -> Context:
    """Returns what a call of a model needs around it, by token count: a forward context for attention."""

    def context(count: int) -> contextlib.AbstractContextManager[Any]:
        # Of tensors without memory the ops ask for no context.
        if not served.layers or served.weightless is not None:
            return contextlib.nullcontext()
        return set_forward_context(dummy_context(served, deployment, count))

    return context
