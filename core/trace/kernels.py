"""The users' Triton kernels that a graph launches: their code decides what is compiled, and is in the key.

Private: `kernel_side_table`, in which Dynamo keeps the kernels of a process by number; tried on torch
2.11.0 and 2.13.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from graphkiln.cache.factors.difference import Difference
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.kernel_objects import kernel_name
from graphkiln.core.trace.observe import typed_constant
from graphkiln.core.trace.reach import first_change, kernel_reach

_LAUNCHES = "triton_kernel_wrapper_"


def is_launch(target: Any) -> bool:
    """Says whether a node's target launches a user's Triton kernel."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name().startswith(_LAUNCHES)


def launched(node: torch.fx.Node) -> tuple[Any, Mapping[str, Any]]:
    """Returns the kernel that a node launches, and the arguments that are constants.

    In the graph both are numbers of this process alone.
    """
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel = kernel_side_table.get_kernel(int(node.kwargs["kernel_idx"]))  # type: ignore[arg-type]
    constants = kernel_side_table.get_constant_args(int(node.kwargs["constant_args_idx"]))  # type: ignore[arg-type]
    return kernel, constants


def launch_data(node: torch.fx.Node) -> list[Any]:
    """Returns what a node launches as plain data. Raises Bypass for what has no stored form."""
    kernel, constants = launched(node)
    given = {name: _constant(value) for name, value in sorted(constants.items())}
    return [kernel_reach(kernel, CodeDigests()), given]


def _constant(value: Any) -> Any:
    # Dtypes of Triton's own are passed as constants too.
    if type(value).__module__.startswith("triton."):
        return ["triton", str(value)]
    return typed_constant(value)


def record_kernels(graphs: Iterable[torch.fx.GraphModule], digests: CodeDigests) -> dict[str, Any]:
    """Returns `{module:qualified name: what it is}` of the kernels that graphs launch.

    Raises Bypass for a kernel that cannot be found again by its name, or compared.
    """
    found: dict[str, Any] = {}
    for kernel in _kernels(graphs):
        name = kernel_name(kernel)
        if _find(name) is not kernel:
            raise Bypass("code", f"the Triton kernel {name} is not what its module has under that name")
        found[name] = kernel_reach(kernel, digests)
    return dict(sorted(found.items()))


def check_kernels(then: Mapping[str, Any], digests: CodeDigests) -> list[Difference]:
    """Returns how the kernels of this process differ from the recorded ones."""
    found = []
    for name, recorded in sorted(then.items()):
        kernel = _find(name)
        try:
            now = None if kernel is None else kernel_reach(kernel, digests)
        except Bypass as bypass:
            now = [str(bypass)]
        if now != recorded:
            remedy = f"restore the Triton kernel {name}, or compile again"
            was, found_now = first_change(recorded, now)
            found.append(Difference("code", f"kernel {name}", was, found_now, remedy=remedy))
    return found


def _kernels(graphs: Iterable[torch.fx.GraphModule]) -> Iterator[Any]:
    for graph in graphs:
        for module in graph.modules():
            if isinstance(module, torch.fx.GraphModule):
                yield from (launched(node)[0] for node in module.graph.nodes if is_launch(node.target))


def _find(name: str) -> Any:
    from graphkiln.core.compile.sealed import resolve

    try:
        return resolve(name)
    except (ImportError, AttributeError):
        return None
