"""Small graphs as Inductor brings them to a pass: of ATen ops, every size of two and more a symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    """Returns the graph of a function, with a fake of each result."""
    return make_fx(function, tracing_mode="symbolic")(*inputs)


def names(graph: fx.Graph) -> list[str]:
    """Returns the calls of a graph in order, without the reads of sizes."""
    return [
        str(node.target).removesuffix(".default")
        for node in graph.nodes
        if node.op == "call_function" and "sym_size" not in str(node.target)
    ]


def outcome(module: fx.GraphModule, *inputs: torch.Tensor) -> Any:
    """Returns what a graph computes as it is now, on copies of the inputs; the graph must be well formed."""
    module.graph.lint()
    module.recompile()
    return module(*(tensor.clone() for tensor in inputs))
