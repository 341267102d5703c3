"""Attention that a factory's model declares: what is refused, what is in its key, what runs it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import fx, nn

from graphkiln.cache.factors.traced import code_differences
from graphkiln.cache.inspect.attention import ATTENTION_OP, attention_of
from graphkiln.cache.store.entries import Entry
from graphkiln.core.attending import Attending
from graphkiln.core.compile.attention import calls_in, dtypes_of, require_as_declared
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError, ModelError
from graphkiln.core.fetching import Fetch
from graphkiln.core.loading import load_stored_attention
from graphkiln.core.models.declared import check_layers, declared_layers, layer_facts
from graphkiln.core.models.load import build
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.ops.attention import ATTENTION
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.parts import call_context, find_parts
from graphkiln.core.start import key, load_model, precompile, warm
from graphkiln.core.target.cuda import CudaTarget
from graphkiln.core.target.description import find_description
from graphkiln.core.target.named import find_target
from tests.target.crossing import can_cross, described_file

LAYER = AttentionLayer("first", heads=4, kv_heads=2, head_size=16, value_size=8, scale=0.25)
LAYERS = (LAYER, replace(LAYER, name="second", window=3))
MODEL = Path(__file__).with_name("own_attention.py")


def declaring(*layers: Any) -> nn.Module:
    module = nn.Module()
    module.attention_layers = list(layers)  # type: ignore[assignment]
    return module


def other(**facts: Any) -> AttentionLayer:
    return replace(LAYER, **facts)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((LAYER, "second"), "a str among them"),
        ((LAYER, LAYER), "the name 'first' twice"),
        ((replace(LAYER, kv_heads=3),), "'first', whose 4 heads cannot share 3 key heads evenly"),
        ((replace(LAYER, head_size=0),), "'first', whose heads or sizes are no counts"),
        ((replace(LAYER, window=0),), "'first' with a window of 0 keys"),
        ((replace(LAYER, softcap=-1.0),), "'first' with a softcap of -1.0"),
        ((other(softcap="30"),), "'first' with a softcap of '30'"),
        ((other(softcap=math.nan),), "'first' with a softcap of nan"),
        ((other(scale=None),), "'first' with a scale of None"),
        ((other(name=3),), "one by the name 3"),
    ],
)
def test_what_can_be_no_layer_is_refused_by_name(layers: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ModelError, match=re.escape(f"its attention_layers have {said}")):
        declared_layers("m:make", declaring(*layers))


def test_what_a_model_calls_so_for_its_own_ends_is_no_declaration() -> None:
    assert declared_layers("m:make", declaring(*LAYERS)) == LAYERS
    own = nn.Module()
    own.attention_layers = nn.ModuleList([nn.Linear(2, 2)])
    assert declared_layers("m:make", own) == declared_layers("m:make", nn.Module()) == ()
    assert declared_layers("m:make", declaring(3, 5)) == ()


@pytest.mark.parametrize(
    ("now", "differs"),
    [
        (LAYERS, []),
        ((replace(LAYER, scale=0.5), LAYERS[1]), []),
        ((LAYER, replace(LAYERS[1], window=None)), [("second window", 3, None)]),
        ((replace(LAYER, softcap=30.0), LAYERS[1]), [("first softcap", False, True)]),
    ],
)
def test_what_its_kernels_are_compiled_for_is_compared_fact_by_fact(
    now: tuple[AttentionLayer, ...], differs: list[Any]
) -> None:
    wanted = [(f"attention layer {name}", then, after) for name, then, after in differs]
    then = layer_facts(LAYERS)
    assert [(one.name, one.then, one.now) for one in check_layers(then, now)] == wanted
    parts: list[dict[str, Any]] = [{"whole": {"attention": layer_facts(one)}} for one in (LAYERS, now)]
    assert [(one.name, one.then, one.now) for one in code_differences(*parts)] == wanted


def graph(layer: str = "first", heads: int = 4, output: torch.dtype = torch.float32) -> fx.GraphModule:
    """Gives a traced part that calls both ops, some arguments by name and in another order."""
    made = fx.Graph()

    def given(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> fx.Node:
        node = made.placeholder(name)
        node.meta["example_value"] = torch.empty(5, *shape, dtype=dtype, device="meta")
        return node

    query, key, value = given("query", heads, 16), given("key", 2, 16), given("value", 2, 8)
    out = given("output", heads, 8, dtype=output)
    ops = torch.ops.graphkiln
    written = made.call_function(ops.unified_kv_cache_update, (key, value, layer))
    named: dict[str, Any] = {
        "output": out,
        "layer_name": layer,
        "value": value,
        "kv_cache_dummy_dep": written,
    }
    made.call_function(ops.unified_attention_with_output.default, (query, key), named)
    made.output(out)
    return fx.GraphModule(nn.Module(), made)


def of_layers(*layers: AttentionLayer) -> ServedModel:
    device = torch.device("cuda", 0)
    return ServedModel(
        nn.Module(), lambda one: one, lambda count: (), layers, None, 64, torch.float32, device
    )


def test_calls_are_read_by_the_names_of_their_arguments() -> None:
    calls = calls_in([graph(output=torch.bfloat16)])
    require_as_declared(calls, LAYERS)
    wanted = {"first": ["float32", "float32", "float32", "bfloat16"], "second": ["float32"] * 4}
    assert dtypes_of(calls, of_layers(*LAYERS)) == wanted


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            {"heads": 8},
            "attention layer first: it is declared with query [T, 4, 16] and called with [T, 8, 16]",
        ),
        ({"layer": "third"}, "layer third: the model calls it, and its attention_layers are first, second"),
    ],
)
def test_a_call_of_another_layer_than_is_declared_is_refused(made: dict[str, Any], said: str) -> None:
    with pytest.raises(CompileError, match=re.escape(said)):
        require_as_declared(calls_in([graph(**made)]), LAYERS)


def test_a_second_call_of_a_layer_with_other_tensors_is_refused() -> None:
    assert calls_in([graph(), graph()]).attended.keys() == {"first"}
    with pytest.raises(CompileError, match="attention layer first: it is called with tensors of other sizes"):
        calls_in([graph(), graph(output=torch.bfloat16)])


def attending(layers: tuple[AttentionLayer, ...], target: str) -> Attending:
    h200 = find_description("h200")
    gpu = CudaTarget(h200.device, "13.0", "h200", described=h200)
    return Attending(of_layers(*layers), Deployment("m:make"), find_target("cpu") if target == "cpu" else gpu)


@pytest.mark.parametrize(
    ("layers", "target", "why"),
    [
        ((), "gpu", "the model does not say in attention_layers what its layers are"),
        ((replace(LAYER, head_size=512),), "gpu", "it has heads of up to 256, first has 512"),
        (LAYERS, "gpu", "it was made without"),
        # There are no kernels that an entry for a CPU could bring.
        ((), "cpu", None),
    ],
)
def test_a_start_says_what_attention_an_entry_does_not_bring(
    layers: tuple[AttentionLayer, ...], target: str, why: str | None
) -> None:
    call = {"op": f"{ATTENTION}.default", "args": [["r", 1], ["c", ["s", "first"]]]}
    wirings = {"one": {"steps": [{"piece": 0}, call]}, "two": {"steps": [call]}}
    stored: Any = SimpleNamespace(name="e", wiring=wirings.get)
    found, nothing = attending(layers, target), cast(Fetch, None)
    load_stored_attention(stored, nothing, ["one", "two"], found)
    assert found.left_out == (f"attention of first and 1 more is not in the entry: {why}" if why else "")


def test_a_build_says_what_attention_it_leaves_out(tmp_path: Path) -> None:
    found = attending((), "gpu")
    assert found.build([graph()], tmp_path, None) is None
    assert found.left_out.startswith("attention of first is not in the entry: the model does not say")
    with pytest.raises(CompileError, match="the model calls it"):
        attending(LAYERS, "cpu").build([graph("third")], tmp_path, None)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Deployment]:
    """Gives the deployment of a factory's model whose second layer has a window."""

    def deployment(window: int | None = 3) -> Deployment:
        name = f"own_attention_{window}"
        text = MODEL.read_text().replace("WINDOW = 3", f"WINDOW = {window}")
        (tmp_path / f"{name}.py").write_text(text)
        return Deployment(f"{name}:make", max_num_batched_tokens=16, block_size=4)

    monkeypatch.syspath_prepend(str(tmp_path))
    return deployment


def test_declared_attention_runs_where_a_start_calls_the_model(made: Callable[..., Deployment]) -> None:
    deployment = made()
    runner = load_model(deployment, CompilationConfig(backend="eager"))
    assert [layer.window for layer in runner.served.layers] == [None, 3]
    inputs = runner.served.example_inputs(9)
    context = call_context(runner.served, deployment)
    with torch.no_grad(), context(9):
        got = runner.plain_forward(*inputs)
    wide = build(identify(made(None)), made(None))
    wide.backbone.load_state_dict(runner.served.backbone.state_dict())
    with torch.no_grad(), call_context(wide, deployment)(9):
        other = wide.backbone(*inputs)
    # The first tokens see all there is to see, the last ones not.
    assert torch.allclose(got[:3], other[:3], atol=1e-6)
    assert not torch.allclose(got[-1], other[-1], atol=1e-4)


def test_a_declaration_is_in_the_key(made: Callable[..., Deployment]) -> None:
    then, now = (key(made(window)).factors["code"] for window in (3, None))
    (found,) = [one for one in code_differences(then, now) if one.name.startswith("attention")]
    assert (found.name, found.then, found.now) == ("attention layer second window", 3, None)


def test_parts_below_the_root_are_seen_without_memory(made: Callable[..., Deployment]) -> None:
    deployment = made()
    served = build(identify(deployment), deployment, weights="none")
    config, context = CompilationConfig(), call_context(served, deployment)
    parts = find_parts(served.backbone, config, served.example_inputs, 8, context)
    assert [(part.prefix, part.layers) for part in parts] == [("one", served.layers), ("two", ())]
    (x,) = parts[0].arguments(5)
    assert (tuple(x.shape), type(x).__name__) == ((5, 32), "FakeTensor")


@can_cross
def test_declared_attention_is_in_an_entry_for_a_gpu(made: Callable[..., Deployment], tmp_path: Path) -> None:
    deployment = replace(made(), target=described_file("h200", tmp_path))
    compiled = precompile(deployment, cache_root=tmp_path)
    assert compiled.entry_path is not None
    (found,) = attention_of(Entry(compiled.entry_path))
    assert {kernel.facts.get("WINDOW") for kernel in found.kernels} == {None, 0, 3}
    assert {kernel.facts.get("BLOCK_SIZE") for kernel in found.kernels} == {None, 4}
    hit = warm(deployment, require_hit=True, cache_root=tmp_path)
    assert hit.outcome == "hit"
    assert any("launches of attention in" in note for note in hit.notes)


def test_the_op_that_an_entry_is_read_for_is_the_one_that_attends() -> None:
    assert ATTENTION_OP == ATTENTION
