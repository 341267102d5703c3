"""Each preset of another architecture: compiled once, then started by a process that finds it.

Each is asked for otherwise, so that one compile shows two things: another model, and a level, ranges,
sizes, or a kind of shapes.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from graphkiln.cli.app import main
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.assign import initializer_range, random_tensor
from graphkiln.core.models.presets import PRESETS
from graphkiln.core.models.source import identify
from graphkiln.core.start import key, load_model
from tests.start.children import start
from tests.start.conftest import Compiled, compiled_once
from tests.start.test_hits import assert_compiled_nothing

LAYERS = {"gemma3": 4, "gpt2": 3, "mixtral": 3, "qwen2_moe": 3, "opt": 3, "qwen3": 3}
EXPERTS = ("mixtral", "qwen2_moe")
LARGEST = 128
LIMITS = {"max_num_batched_tokens": LARGEST}


@dataclass(frozen=True)
class Asked:
    """What is asked for, and what comes of it: ranges in the order of compiling, and the kind of shapes."""

    config: Mapping[str, Any]
    ranges: tuple[tuple[int, int], ...] = ((1, LARGEST),)
    dynamic: str = "backed"
    # A piece before the first attention, one between two, one after the last.
    distinct: int = 3
    artifacts: int = 3


ASKED = {
    "gemma3": Asked({"dynamic_shapes_config": {"type": "backed_size_oblivious"}}),
    "gpt2": Asked(
        {"compile_ranges_endpoints": [8, 64], "compile_sizes": [1, 16]},
        ((1, 1), (16, 16), (1, 8), (9, 64), (65, LARGEST)),
        artifacts=9,
    ),
    "mixtral": Asked({"optimization_level": 1}),
    "qwen2_moe": Asked({"dynamic_shapes_config": {"type": "unbacked"}}, dynamic="unbacked"),
    "opt": Asked({"use_inductor_graph_partition": True}, distinct=1, artifacts=1),
    "qwen3": Asked({}),
}
# Longer than gemma3's window, so that decoding leaves tokens behind.
PROMPT = [5, 17, 250, 3, 99, 42, 8, 120, 77, 201, 13, 64, 31, 9, 160, 88, 2, 145, 230, 54, 111]
NEW_TOKENS = 12

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=LAYERS)
def preset(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def compiled(preset: str, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    config = ASKED[preset].config
    return compiled_once(tmp_path_factory, preset, f"preset:{preset}", deployment=LIMITS, config=config)


def test_it_is_traced_as_one_graph_and_equals_eager(compiled: Compiled, preset: str) -> None:
    report = compiled.child.report
    assert report["outcome"] == "compiled"
    assert report["counts"]["frames_converted"] == compiled.child.answer["frames"] == 1
    asked = ASKED[preset]
    total = LAYERS[preset] + 1 if asked.distinct > 1 else 1
    pieces = {"total": total, "distinct": asked.distinct, "compiled": asked.distinct * len(asked.ranges)}
    assert report["pieces"] == {**pieces, "reused": total - asked.distinct}
    rows = report["check"]["rows"]
    ends = {count for bounds in asked.ranges for count in bounds}
    assert [row["num_tokens"] for row in rows] == sorted({1, 2, 7, 64, LARGEST, *ends})
    assert all(row["max_abs_error"] <= row["tolerance"] for row in rows)
    experts = [decision["got"] for decision in report["decisions"] if decision["field"] == "experts"]
    assert experts == (["batched_mm"] if preset in EXPERTS else [])


def test_inspect_shows_an_artifact_for_each_piece_and_range(
    compiled: Compiled, preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ASKED[preset]
    assert main(["cache", "inspect", compiled.entry.name, "--json", "--cache-root", str(compiled.root)]) == 0
    pieces = json.loads(capsys.readouterr().out)["pieces"]
    assert [(tuple(piece["range"]), piece["dynamic"]) for piece in pieces] == [
        (bounds, "static" if bounds[0] == bounds[1] else asked.dynamic)
        for bounds in asked.ranges
        for _ in range(asked.distinct)
    ]
    # Equal code is one artifact: in a model as small as this the ranges come out alike.
    artifacts: dict[tuple[int, int], set[str]] = {bounds: set() for bounds in asked.ranges}
    for piece in pieces:
        artifacts[tuple(piece["range"])].add(piece["artifact"])
    assert {len(found) for found in artifacts.values()} == {asked.distinct}
    stored = [path.name for path in (compiled.entry / "artifacts").iterdir()]
    assert sorted(stored) == sorted(set().union(*artifacts.values()))
    assert len(stored) == asked.artifacts


def test_o1_and_o2_ask_for_the_same_code_on_a_cpu_and_o0_for_none() -> None:
    found = {
        level: key(Deployment("preset:gpt2"), CompilationConfig(level), trace=False) for level in range(4)
    }
    assert found[1].lookup == found[2].lookup == found[3].lookup
    assert [found[level].effective["compilation"]["mode"] for level in (0, 1)] == ["NONE", "VLLM_COMPILE"]


def test_o0_decodes_eagerly_what_transformers_generates() -> None:
    runner = load_model(Deployment("preset:gpt2", max_num_batched_tokens=LARGEST), CompilationConfig(0))
    assert runner.report is not None
    assert runner.report.outcome == "bypass"
    assert runner.generate_greedy(PROMPT, NEW_TOKENS) == generated("gpt2")


def test_another_process_decodes_from_it_what_transformers_generates(compiled: Compiled, preset: str) -> None:
    child = start(
        "load_model",
        f"preset:{preset}",
        deployment=LIMITS,
        config=ASKED[preset].config,
        options={"cache_root": str(compiled.root)},
        greedy=(PROMPT, NEW_TOKENS),
    )
    assert_compiled_nothing(child)
    assert "transformers" not in child.answer["imported"]
    assert child.answer["tokens"] == generated(preset)


def test_the_plainest_preset_decodes_what_transformers_generates(llama: Compiled) -> None:
    options = {"cache_root": str(llama.root)}
    child = start("load_model", "preset:llama", options=options, greedy=(PROMPT, NEW_TOKENS))
    assert_compiled_nothing(child)
    assert child.answer["tokens"] == generated("llama")


def generated(name: str) -> list[int]:
    """Returns what transformers itself makes of the prompt, with its own attention, experts and cache."""
    model = transformers_model(name)
    prompt = torch.tensor([PROMPT])
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(made.logits).topk(2).values
    # Otherwise equal tokens would be luck.
    assert (best[..., 0] - best[..., 1]).min() > 1e-3
    tokens: list[int] = made.sequences[0, len(PROMPT) :].tolist()
    return tokens


def transformers_model(name: str) -> Any:
    architecture = identify(Deployment(f"preset:{name}")).architecture
    assert architecture is not None
    kind: Any = getattr(importlib.import_module(architecture.module), architecture.name)
    config = kind.config_class.from_dict(dict(PRESETS[name]))
    model = kind._from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(random_tensor(f"0:{key}", parameter, initializer_range(model)))
    return model
