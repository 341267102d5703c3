"""Operators whose code torch chooses by asking the device that runs it: without the device, nobody knows.

With no device to ask, torch takes another way and says nothing: attention would become plain
products, slow and with other numbers. Values that code puts on the device as it is traced would be put
elsewhere, and copied at each call. So such a graph is refused.
"""

from __future__ import annotations

from torch import fx

from graphkiln.core.errors import NoDevice
from graphkiln.core.target.description import Description

# By the last part of their names, in a traced graph or below it.
_ASKS = {
    "scaled_dot_product_attention": "which attention kernel serves it",
    "batch_norm": "whether cuDNN serves it",
    "lstm": "whether cuDNN serves it",
    "gru": "whether cuDNN serves it",
    "rnn_tanh": "whether cuDNN serves it",
    "rnn_relu": "whether cuDNN serves it",
}
# What makes a tensor of values that stand in the code, on a device or by copying them there.
_HOLDS = ("tensor", "as_tensor", "new_tensor", "from_numpy")


def refuse_undecided(graph: fx.GraphModule, description: Description) -> None:
    """Raises NoDevice, naming the operator, for a graph that the described device would have to decide on."""
    for module in graph.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
            if node.op == "call_function" and name in _ASKS:
                raise NoDevice(
                    f"target {description.title}",
                    f"torch asks the device {_ASKS[name]}: {name} cannot be compiled where it is not",
                    "compile on the device, or keep that operator out of the compiled class",
                )
            if node.op in ("call_function", "call_method") and name in _HOLDS:
                raise NoDevice(
                    f"target {description.title}",
                    f"{name} puts values on the device while it is traced, and the device is not here",
                    "make them a buffer of the module, or compile on the device",
                )
