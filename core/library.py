"""Starting a decorated module that a caller built and calls: the library's way in, beside a deployment's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphkiln.cache.errors import CacheError
from graphkiln.core.config.modes import CompilationMode
from graphkiln.core.deployment import Deployment
from graphkiln.core.part import Part, arguments_like
from graphkiln.core.parts import BACKBONE
from graphkiln.core.phases import Phases
from graphkiln.core.plan import plan_for_class
from graphkiln.core.report import Silent
from graphkiln.core.session import Session
from graphkiln.core.starting import store_for
from graphkiln.core.trace.decorator import ActiveConfig

_log = logging.getLogger(__name__)


def start_module(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], active: ActiveConfig
) -> Callable[..., Any]:
    """Returns what serves a decorated module's calls; its first call, `args` and `kwargs`, is the example."""
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    first = next((tensor for tensor in module.parameters()), None)
    dtype = str(first.dtype if first is not None else torch.get_default_dtype()).removeprefix("torch.")
    device = first.device.type if first is not None and first.is_cuda else "cpu"
    plan = plan_for_class(active.deployment or Deployment(model=name), active.config, name, dtype, device)
    if plan.compilation.mode in (CompilationMode.NONE, CompilationMode.STOCK_TORCH_COMPILE):
        plain: Callable[..., Any] = module.forward
        return plain
    phases = Phases(Silent())
    try:
        store = store_for(active.config, active.cache_root)
    except CacheError as error:
        _log.warning("%s: starting without the cache", error)
        store = None
    session = Session(plan, store, phases, command="library")
    prefix = type(module).__name__ if type(module)._graphkiln_is_encoder else BACKBONE  # type: ignore[attr-defined]
    part = Part(prefix, module, arguments_like(module, args, kwargs))
    (forward,) = session.open([part], must_publish=False)
    session.record(session.report())
    return forward
