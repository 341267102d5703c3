"""`@support_torch_compile` and its companions: what a model's author writes."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import nn

from graphkiln.core.trace.arguments import dynamic_dims

if TYPE_CHECKING:
    from graphkiln.core.config.compilation import CompilationConfig
    from graphkiln.core.deployment import Deployment

ModuleClass = TypeVar("ModuleClass", bound=type[nn.Module])

_STATE = "_graphkiln_state"


@dataclass(frozen=True)
class ActiveConfig:
    """What `use_config` put in force: decorated modules built under it compile at their first call."""

    config: CompilationConfig
    deployment: Deployment | None
    cache_root: Path | None


_active: contextvars.ContextVar[ActiveConfig | None] = contextvars.ContextVar(
    "graphkiln_config", default=None
)
_starting = threading.RLock()
_plain: contextvars.ContextVar[bool] = contextvars.ContextVar("graphkiln_plain_calls", default=False)


@contextlib.contextmanager
def use_config(
    config: CompilationConfig | None = None,
    deployment: Deployment | None = None,
    *,
    cache_root: Path | str | None = None,
) -> Iterator[None]:
    """Decorated modules that are built inside this context compile, or hit the cache, at their first call."""
    from graphkiln.core.config.compilation import CompilationConfig

    root = Path(cache_root) if cache_root is not None else None
    token = _active.set(ActiveConfig(config or CompilationConfig(), deployment, root))
    try:
        yield
    finally:
        _active.reset(token)


@overload
def support_torch_compile(cls: ModuleClass, /) -> ModuleClass: ...
@overload
def support_torch_compile(
    *,
    dynamic_arg_dims: Mapping[str, int | list[int]] | None = None,
    mark_unbacked_dims: Mapping[str, int | list[int]] | None = None,
    enable_if: Callable[[Any], bool] | None = None,
    is_encoder: bool = False,
) -> Callable[[ModuleClass], ModuleClass]: ...
def support_torch_compile(
    cls: Any = None,
    /,
    *,
    dynamic_arg_dims: Mapping[str, int | list[int]] | None = None,
    mark_unbacked_dims: Mapping[str, int | list[int]] | None = None,
    enable_if: Callable[[Any], bool] | None = None,
    is_encoder: bool = False,
) -> Any:
    """Marks a module class as one compiled part: dim 0 of every tensor argument of `forward` is dynamic.

    `dynamic_arg_dims` names other dimensions; `mark_unbacked_dims` those that are traced without a
    hint; `enable_if(config)` switches compilation off for a configuration; `is_encoder` names the
    part after its class. Raises TypeError for anything but a class with a `forward` of its own.
    """

    def decorate(target: Any) -> Any:
        if not isinstance(target, type) or not callable(getattr(target, "forward", None)):
            raise TypeError(f"support_torch_compile decorates a class with a forward, not {target!r}")
        marked: Any = target
        forward = marked.forward
        marked._graphkiln_dynamic_dims = dynamic_dims(forward, dynamic_arg_dims)
        marked._graphkiln_unbacked_dims = (
            dynamic_dims(forward, mark_unbacked_dims) if mark_unbacked_dims is not None else {}
        )
        marked._graphkiln_enable_if = staticmethod(enable_if) if enable_if else None
        marked._graphkiln_is_encoder = is_encoder
        marked._graphkiln_ignored = False
        if not hasattr(target, "_graphkiln_supported"):
            marked._graphkiln_supported = True
            _wrap_init(target)
            _wrap_call(target)
        return target

    return decorate(cls) if cls is not None else decorate


def ignore_torch_compile(cls: ModuleClass) -> ModuleClass:
    """Keeps a class from being compiled; decorated submodules, and children decorated again, compile."""
    cls._graphkiln_ignored = True  # type: ignore[attr-defined]
    return cls


def serve_with(module: nn.Module, serve: Callable[..., Any]) -> None:
    """Lets `serve` answer a decorated module's calls from now on."""
    module.__dict__[_STATE] = _PartState(None, serve)


@contextlib.contextmanager
def served_with(module: nn.Module, serve: Callable[..., Any]) -> Iterator[None]:
    """Lets `serve` answer a decorated module's calls inside, and what did so before again after."""
    before = module.__dict__.get(_STATE)
    serve_with(module, serve)
    try:
        yield
    finally:
        if before is None:
            del module.__dict__[_STATE]
        else:
            module.__dict__[_STATE] = before


def serving_below(root: nn.Module) -> list[Callable[..., Any]]:
    """Returns what serves the decorated modules below `root` that were started, in their order."""
    states = [module.__dict__.get(_STATE) for module in root.modules() if module is not root]
    return [state.serve for state in states if state is not None and state.serve is not None]


@contextlib.contextmanager
def plain_calls() -> Iterator[None]:
    """Inside, decorated modules run their own forward: a start looks at a model without starting it."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


class _PartState:
    """A decorated instance's configuration, fixed when it was built, and what serves it once started."""

    def __init__(self, active: ActiveConfig | None, serve: Callable[..., Any] | None = None) -> None:
        self.active = active
        self.serve = serve

    def __deepcopy__(self, memo: dict[int, Any]) -> _PartState:
        # A copied module has its own parameters: it starts again instead of serving the original's.
        return _PartState(self.active)


def _wrap_init(target: Any) -> None:
    original = target.__init__

    def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        active = _active.get()
        if active is not None and _wants_compile(self, active):
            self.__dict__[_STATE] = _PartState(active)

    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    target.__init__ = __init__


def _wants_compile(module: Any, active: ActiveConfig) -> bool:
    if module._graphkiln_ignored or not active.config.compiles:
        return False
    enable_if = type(module)._graphkiln_enable_if
    return enable_if is None or bool(enable_if(active.config))


def _wrap_call(target: Any) -> None:
    original = target.__call__

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = self.__dict__.get(_STATE)
        if state is None or torch.compiler.is_compiling() or _plain.get():
            return original(self, *args, **kwargs)
        if state.serve is None:
            from graphkiln.core.library import start_module

            # A compile patches torch for the whole process: one at a time, whoever calls.
            with _starting:
                if state.serve is None:
                    state.serve = start_module(self, args, kwargs, state.active)
        return state.serve(*args, **kwargs)

    target.__call__ = __call__
