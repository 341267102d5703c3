"""What sets two targets apart, as facts and as one line, and what is no matter of targets."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch

from graphkiln.cache.store.aot_header import AotHeader
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.judging import judge
from graphkiln.core.plan import make_plan
from graphkiln.core.publication import target_header
from graphkiln.core.target.apart import apart, identity, only_apart, sentence
from graphkiln.core.target.named import find_target

TRITON = {"version": "3.6.0", "files": "f" * 64, "environment": {}}


def factor(name: str, **changed: Any) -> dict[str, Any]:
    facts = {"torch": "2.11.0+cu130", "torch_sources": "a" * 64, "python": "3.12", "triton": TRITON}
    return {"target": find_target(name).as_factor(), "inductor": {}, "pipeline": {}, **facts, **changed}


def test_a_target_is_known_by_what_a_person_calls_it() -> None:
    assert identity(find_target("h200").as_factor()) == "NVIDIA H200 (9.0, 132 SMs)"
    assert identity(find_target("cpu:scalar").as_factor()) == "cpu:scalar"


def test_another_gpu_is_one_line_and_one_fact() -> None:
    then, now = factor("h200"), factor("l4")
    (found,) = only_apart(then, now)
    assert (found.name, found.then, found.now) == (
        "target", "NVIDIA H200 (9.0, 132 SMs)", "NVIDIA L4 (8.9, 58 SMs)",
    )  # fmt: skip
    assert sentence("ab12cd34ef", then, now) == (
        "entry ab12cd34ef is for NVIDIA H200 (9.0, 132 SMs); this start is for NVIDIA L4 (8.9, 58 SMs)"
    )


H200 = find_target("h200").as_factor()
FACTS: list[tuple[dict[str, Any], str, str]] = [
    ({"torch": "2.11.1+cu130"}, "torch version", "torch 2.11.0+cu130"),
    ({"torch_sources": "b" * 64}, "torch files", "torch files aaaaaaaaaa"),
    ({"python": "3.11"}, "python version", "Python 3.12"),
    ({"triton": {**TRITON, "version": "3.7.1"}}, "triton version", "triton 3.6.0"),
    ({"triton": {**TRITON, "files": "e" * 64}}, "triton.files", "triton.files ffff"),
    ({"target": {**H200, "toolkit": "12.8"}}, "toolkit", "toolkit 13.0"),
    ({"target": {**H200, "warp_size": 64}}, "target.warp_size", "warp_size 32"),
]


@pytest.mark.parametrize(("changed", "name", "said"), FACTS, ids=[name for _, name, _ in FACTS])
def test_each_fact_of_a_machine_is_named_with_both_values(
    changed: dict[str, Any], name: str, said: str
) -> None:
    then, now = factor("h200"), factor("h200", **changed)
    (found,) = only_apart(then, now)
    assert (found.name, found.remedy != "") == (name, True)
    line = sentence("ab12cd34ef", then, now)
    assert f"entry ab12cd34ef is for NVIDIA H200 (9.0, 132 SMs) with {said}" in line
    assert "\n" not in line


def test_a_toolkit_is_named_beside_the_device_and_a_limit_of_the_device_is_not() -> None:
    other = {**find_target("l4").as_factor(), "toolkit": "12.8"}
    assert [one.name for one in apart(factor("h200"), factor("l4", target=other))] == ["target", "toolkit"]


def test_what_a_gpu_has_is_no_fact_between_it_and_a_cpu() -> None:
    gpu = factor("h200", pipeline={"compile.build": "1", "ops.paged": "2"})
    cpu = factor("cpu", pipeline={"compile.build": "1"})
    for then, now in [(gpu, cpu), (cpu, gpu)]:
        assert [one.name for one in only_apart(then, now)] == ["target"]
    assert only_apart(gpu, {**cpu, "pipeline": {"compile.build": "2"}}) == ()


def test_a_setting_is_no_matter_of_targets() -> None:
    assert only_apart(factor("h200"), factor("l4", inductor={"changed": {"epilogue_fusion": False}})) == ()
    assert only_apart(factor("h200"), factor("h200")) == ()


def judged(written: str, called: str, target: str) -> list[str]:
    """What the header of a file for `written`, asked for as `called`, has against a start for `target`."""
    recorded = make_plan(Deployment("preset:llama", target=written), CompilationConfig())
    assert recorded.factors is not None
    body = {
        "target": {**target_header(recorded.target), "name": called},
        "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
        "factors": recorded.factors.as_json(),
        "lookup": recorded.lookup,
        "code": {},
    }
    plan = make_plan(Deployment("preset:llama", target=target), CompilationConfig())
    found = judge(AotHeader(body, {}, {}, {}, {}), plan)
    return [f"{one.name}: {one.then} -> {one.now}" for one in found]


def test_an_aot_file_is_judged_by_the_device_and_not_by_what_it_was_called() -> None:
    assert judged("h200", "cuda", "h200") == judged("h200", "h200", "h200") == []
    assert judged("cpu:scalar", "cpu:scalar", "cpu:scalar") == []
    assert judged("h200", "h200", "l4") == [
        "target: NVIDIA H200 (9.0, 132 SMs) -> NVIDIA L4 (8.9, 58 SMs)",
    ]
