"""Splitting: the rules on small graphs, and a table of observed splits when it is at hand."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from graphkiln.core.compile.split import assign_parts, expand_size_reads, split_graph

TABLE = Path(__file__).parents[3] / "shared" / "reference" / "oracle" / "split.json"

SIZE_HINT = 13


@pytest.fixture(scope="module")
def toy() -> Iterator[Any]:
    library = torch.library.Library("toy", "DEF")
    for name in ("cut", "cut_b", "plain"):
        library.define(f"{name}(Tensor[] xs) -> Tensor")
    for name in ("cut_pair", "plain_pair"):
        library.define(f"{name}(Tensor[] xs) -> (Tensor, Tensor)")
    library.define("cut.alt(Tensor[] xs, int n) -> Tensor")
    yield torch.ops.toy
    library._destroy()


class GraphOf:
    """Builds an fx graph from the table's node list; node i of the table keeps its index."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        env = self.mode.shape_env
        assert env is not None
        source = torch._dynamo.source.ConstantSource("T")
        symbol = env.create_symbol(SIZE_HINT, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        self.size = env.create_symintnode(symbol, hint=SIZE_HINT, source=source)
        self.graph = fx.Graph()
        self.nodes: list[fx.Node] = []
        for spec in nodes:
            self.nodes.append(self._node(spec))
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.module = fx.GraphModule({}, self.graph)

    def _fake(self, *size: Any) -> torch.Tensor:
        with self.mode:
            return torch.empty(size)

    def _node(self, spec: dict[str, Any]) -> fx.Node:
        graph, kind = self.graph, spec["kind"]
        node: fx.Node
        inputs = [self.nodes[i] for i in spec.get("in", [])]
        tensor = self._fake(4 if spec.get("static") else self.size, 8)
        value: Any = tensor
        if kind in ("batch", "input", "input_pair"):
            node = graph.placeholder(f"in_{len(self.nodes)}")
            value = {"batch": self.size, "input": tensor, "input_pair": (tensor, tensor)}[kind]
        elif kind == "output":
            end: fx.Node = graph.output(tuple(inputs))
            return end
        elif kind == "op":
            function: Any = {1: torch.relu, 2: torch.add, 3: torch.addcmul}[len(inputs)]
            node = graph.call_function(function, tuple(inputs))
        elif kind == "method":
            node = graph.call_method("sigmoid", tuple(inputs))
        elif kind == "custom":
            packet = getattr(torch.ops.toy, spec["name"])
            target = getattr(packet, spec["overload"]) if "overload" in spec else packet
            extra = (1,) if spec.get("overload") == "alt" else ()
            node = graph.call_function(target, (inputs, *extra))
            value = (tensor, tensor) if "pair" in spec["name"] else tensor
        elif kind == "chunk":
            node = graph.call_function(torch.chunk, (inputs[0], 2, -1))
            value = (tensor, tensor)
        elif kind == "getitem":
            node = graph.call_function(operator.getitem, (inputs[0], spec["index"]))
        elif kind == "empty":
            node, value = self._empty(spec["variant"], inputs)
        elif kind == "size":
            node = graph.call_method("size", (inputs[0],))
            value = inputs[0].meta["example_value"].size()
        elif kind == "size_dim":
            node = graph.call_method("size", (inputs[0], spec["dim"]))
            value = inputs[0].meta["example_value"].size(spec["dim"])
        elif kind == "view_size":
            node = graph.call_method("view", tuple(inputs))
        elif kind == "scale":
            node = graph.call_function(operator.mul, (inputs[1], inputs[0]))
        else:
            raise AssertionError(kind)
        node.meta["example_value"] = value
        return node

    def _empty(self, variant: str, inputs: list[fx.Node]) -> tuple[fx.Node, torch.Tensor]:
        graph, fixed = self.graph, self._fake(3, 8)
        like = self._fake(self.size, 8)
        aten = torch.ops.aten
        if variant == "new_empty":
            return graph.call_method("new_empty", (inputs[0], (3, 8))), fixed
        if variant in ("empty", "zeros"):
            return graph.call_function(getattr(torch, variant), ((3, 8),)), fixed
        if variant == "empty_strided":
            return graph.call_function(torch.empty_strided, ((3, 8), (8, 1))), fixed
        if variant in ("empty_like", "zeros_like"):
            return graph.call_function(getattr(torch, variant), (inputs[0],)), like
        name = variant.removeprefix("aten_")
        target: Any = {
            "empty": aten.empty.memory_format,
            "empty_like": aten.empty_like.default,
            "empty_strided": aten.empty_strided.default,
            "new_empty": aten.new_empty,
        }[name]
        args: tuple[Any, ...] = {
            "empty": ((3, 8),),
            "empty_like": tuple(inputs),
            "empty_strided": ((3, 8), (8, 1)),
            "new_empty": (*inputs, (3, 8)),
        }[name]
        return graph.call_function(target, args), like if "like" in name else fixed


def _rows() -> list[dict[str, Any]]:
    return json.loads(TABLE.read_text()) if TABLE.is_file() else []


@pytest.mark.skipif(not TABLE.is_file(), reason="the table of observed splits is not here")
def test_splits_agree_with_the_observed_table(toy: Any) -> None:
    for row in _rows():
        given, wanted = row["input"], row["output"]
        built = GraphOf(given["nodes"])
        before = dict(built.index)
        expand_size_reads(built.module)
        part_of, splitting = assign_parts(built.graph, given["splitting_ops"])
        found: dict[int, dict[str, Any]] = {}
        for node, number in part_of.items():
            label: Any = before.get(node)
            if label is None:
                tensor: Any = node.args[0]
                label = ("dim", before[tensor], node.args[1])
            found.setdefault(number, {"splitting": number in splitting, "nodes": set()})["nodes"].add(label)
        expected = {
            piece["id"]: {
                "splitting": piece["splitting"],
                "nodes": {tuple(n) if isinstance(n, list) else n for n in piece["nodes"]},
            }
            for piece in wanted["pieces"]
        }
        assert found == expected, given.get("note")


def test_pieces_of_a_layered_graph_run_like_the_whole(toy: Any) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(2, 8)
    a = graph.call_function(torch.relu, (x,))
    b = graph.call_function(torch.ops.toy.cut.default, ([a],))
    c = graph.call_function(torch.add, (b, a))
    graph.output((c,))
    split = split_graph(fx.GraphModule({}, graph), ["toy::cut"])
    assert [(part.index, part.splitting) for part in split.parts] == [(0, False), (1, True), (2, False)]
    assert [part.name for part in split.pieces] == ["submod_0", "submod_2"]
