"""The library: decorate a model, deploy it, load it compiled. Public names are imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphkiln.core.config.compilation import CompilationConfig
    from graphkiln.core.deployment import Deployment
    from graphkiln.core.start import load_model
    from graphkiln.core.trace.decorator import ignore_torch_compile, support_torch_compile, use_config

__all__ = [
    "CompilationConfig",
    "Deployment",
    "ignore_torch_compile",
    "load_model",
    "support_torch_compile",
    "use_config",
]

_WHERE = {
    "CompilationConfig": "graphkiln.core.config.compilation",
    "Deployment": "graphkiln.core.deployment",
    "ignore_torch_compile": "graphkiln.core.trace.decorator",
    "load_model": "graphkiln.core.start",
    "support_torch_compile": "graphkiln.core.trace.decorator",
    "use_config": "graphkiln.core.trace.decorator",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from graphkiln.core.collector import collector_paused

    with collector_paused():
        return getattr(importlib.import_module(_WHERE[name]), name)
