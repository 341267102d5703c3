from __future__ import annotations

from typing import Any

import pytest
import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.models.backbone import Backbone
from graphkiln.core.models.load import build
from graphkiln.core.models.mask import describes
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.ops.forward_context import set_forward_context
from graphkiln.core.runner import dummy_context

DEPLOYMENT = Deployment("preset:llama")


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return build(identify(DEPLOYMENT), DEPLOYMENT)


def run(served: ServedModel, forward: Any, num_tokens: int) -> torch.Tensor:
    inputs = served.example_inputs(num_tokens)
    with torch.no_grad(), set_forward_context(dummy_context(served, DEPLOYMENT, num_tokens)):
        result: torch.Tensor = forward(*inputs)
    return result


def test_one_graph_holds_both_ops_of_each_layer_and_serves_every_length(served: ServedModel) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def call(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Backbone.forward(served.backbone, ids, positions)  # type: ignore[arg-type]
        return result

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=keep)
    for num_tokens in (13, 2, 40):
        ids, positions = served.example_inputs(num_tokens)
        for tensor in (ids, positions):
            torch._dynamo.mark_dynamic(tensor, 0)
        context = dummy_context(served, DEPLOYMENT, num_tokens)
        with torch.no_grad(), set_forward_context(context):
            assert torch.equal(compiled(ids, positions), call(ids, positions))
    assert len(graphs) == 1
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    names = [layer.name for layer in served.layers]
    for op in ("unified_kv_cache_update", "unified_attention_with_output"):
        assert sum(op in target for target in targets) == len(names)
    constants = [arg for node in graphs[0].graph.nodes for arg in node.args if isinstance(arg, str)]
    assert [name for name in constants if name in names] == [name for name in names for _ in range(2)]
    assert any(isinstance(node.meta.get("example_value"), torch.SymInt) for node in graphs[0].graph.nodes)


def test_eager_attention_stays_available(served: ServedModel) -> None:
    eager = build(identify(DEPLOYMENT), DEPLOYMENT, attention="eager")
    assert eager.layers == ()
    for num_tokens in (1, 19):
        with torch.no_grad():
            want = eager.backbone(*eager.example_inputs(num_tokens))
        assert torch.equal(run(served, served.backbone, num_tokens), want)


def test_the_probe_leaves_no_name_behind(served: ServedModel) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert "graphkiln" in ALL_ATTENTION_FUNCTIONS
    assert "graphkiln_probe" not in ALL_ATTENTION_FUNCTIONS
    assert not {"graphkiln", "graphkiln_probe"} & set(ALL_MASK_ATTENTION_FUNCTIONS)


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key <= query


def windowed(size: int) -> Any:
    return lambda batch, head, query, key: (key <= query) & (key > query - size)


@pytest.mark.parametrize(
    ("mask", "window", "same"),
    [
        (causal, None, True),
        (windowed(7), 7, True),
        (windowed(4096), 4096, True),
        (causal, 7, False),
        (windowed(7), None, False),
        (windowed(8), 7, False),
        (lambda batch, head, query, key: key == key, None, False),
        (lambda batch, head, query, key: (key <= query) & (key // 64 == query // 64), None, False),
        (lambda batch, head, query, key: (key <= query) | (key < 4), None, False),
        (lambda batch, head, query, key: 1 / 0, None, False),
    ],
)
def test_a_mask_function_is_told_from_the_causal_one(mask: Any, window: int | None, same: bool) -> None:
    assert describes(mask, window) == same
