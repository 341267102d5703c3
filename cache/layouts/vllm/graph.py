"""`computation_graph.py`: the split graph as text, which cannot be run and says a lot."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

GRAPH_FILE = "computation_graph.py"
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
_PIECE = re.compile(r"^    class (submod_(\d+))\(", re.MULTILINE)
_PARAMETER = re.compile(r'\b(\w+): "(f32|f16|bf16|f64)\[([\d, ]+)\]"')
_DTYPE = re.compile(r': "(f32|f16|bf16|f64)\[')
_FILE = re.compile(r"# File: (\S+?):(\d+) in (\S+?),")
_LAYER = re.compile(r"_layers_(?:modules_)?(\d+)_")
_OPAQUE = re.compile(r"torch\.ops\.([a-z_]\w*\.\w+)")
_HEAD = 1 << 14


@dataclass(frozen=True)
class GraphText:
    """What the text says: the most frequent dtype of parameters, pieces in their order, layers, files.

    `shapes` are parameters with their shapes, the first of each kind of name.
    """

    text: str
    dtype: str
    pieces: tuple[str, ...]
    layers: int
    files: tuple[str, ...]
    shapes: tuple[tuple[str, str], ...]


def dtype_of(text: str) -> str:
    """Return the most frequent dtype of the floating parameters in the head of a graph, "" for none."""
    counts = Counter(_DTYPE.findall(text, 0, _HEAD))
    return DTYPES[counts.most_common(1)[0][0]] if counts else ""


def read_graph(text: str) -> GraphText:
    """Return what a graph's text says; nothing in it is executed."""
    start, _, _ = text.partition("\n    class ")
    layers = {int(found) for found in _LAYER.findall(start)}
    shapes: dict[str, str] = {}
    for name, dtype, shape in _PARAMETER.findall(start):
        shapes.setdefault(_LAYER.sub("_layers_N_", name), f"{DTYPES[dtype]}[{shape}]")
    return GraphText(
        text,
        dtype_of(text),
        tuple(match[1] for match in _PIECE.finditer(text)),
        len(layers),
        tuple(dict.fromkeys(match[1] for match in _FILE.finditer(text))),
        tuple(shapes.items()),
    )


def opaque_ops(text: str) -> dict[str, str]:
    """Return by name of a piece that holds nothing but an opaque op of vLLM's which op that is."""
    found = {}
    for match in _PIECE.finditer(text):
        end = text.find("\n    class ", match.end())
        body = text[match.end() : end if end > 0 else len(text)]
        ops = [op for op in _OPAQUE.findall(body) if op.startswith("vllm.")]
        if ops:
            found[match[1]] = ops[-1]
    return found
