"""A debug mode: what a trace took for granted is looked at again before every call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphkiln.core.errors import DoorError
from graphkiln.core.trace.code import check_code


def guarded(
    serve: Callable[..., Any],
    factor: Mapping[str, Any],
    sources: Mapping[str, Mapping[str, Any]],
    module: torch.nn.Module,
) -> Callable[..., Any]:
    """Returns `serve` behind a check of all recorded guards; a call that breaks one raises DoorError."""

    @functools.wraps(serve, assigned=(), updated=())
    def checked(*args: Any, **kwargs: Any) -> Any:
        found = check_code(factor, sources, module)
        if found:
            raise DoorError(found[0].name, str(found[0].then), str(found[0].now))
        return serve(*args, **kwargs)

    return checked
