"""vLLM's spellings and the placing of global options."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphkiln.cli.argv import rewrite
from graphkiln.cli.errors import UsageProblem


def config_of(*words: str) -> Any:
    *_, name, text = rewrite(["precompile", "m", *words])
    assert name == "--compilation-config"
    return json.loads(text)


@pytest.mark.parametrize(
    "words", [["-O2"], ["-O=2"], ["-O", "2"], ["--optimization-level=2"], ["--optimization-level", "2"]]
)
def test_a_level_is_one_option_however_it_is_spelled(words: list[str]) -> None:
    assert rewrite(["precompile", "m", *words]) == ["precompile", "m", "--optimization-level", "2"]


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (["-cc.cudagraph_mode=NONE"], {"cudagraph_mode": "NONE"}),
        (["-cc.cudagraph_mode", "NONE"], {"cudagraph_mode": "NONE"}),
        (
            ["-cc.custom_ops", '["+rms_norm", "-silu_and_mul"]'],
            {"custom_ops": ["+rms_norm", "-silu_and_mul"]},
        ),
        (["-cc.dynamic_shapes_config.type=unbacked"], {"dynamic_shapes_config": {"type": "unbacked"}}),
        (
            ["-cc.pass_config.fuse_norm_quant=false", "-cc.use_inductor_graph_partition=true"],
            {"pass_config": {"fuse_norm_quant": False}, "use_inductor_graph_partition": True},
        ),
        (
            ['--compilation-config={"pass_config": {"x": true}}', "-cc.pass_config.y=true"],
            {"pass_config": {"x": True, "y": True}},
        ),
        (["-cc.compile_sizes=[1,8]"], {"compile_sizes": [1, 8]}),
        (
            ["-cc.pass_config.fuse=true", "-cc.pass_config.eps=1e-3"],
            {"pass_config": {"fuse": True, "eps": 0.001}},
        ),
        (["--compilation-config.mode=3"], {"mode": 3}),
        (["-cc", '{"mode": 3}', "-cc.debug=null"], {"mode": 3, "debug": None}),
        (['-cc={"a": {"x": 1}}', "-cc.a.y=2"], {"a": {"x": 1, "y": 2}}),
        (["-cc.a=1", "-cc.a=2"], {"a": 2}),
        (["-cc.a=1", "-cc.a.b=2"], {"a": {"b": 2}}),
        (["-cc.text=a=b"], {"text": "a=b"}),
        (["-cc.inductor_compile_config.cpp.threads=1"], {"inductor_compile_config": {"cpp.threads": 1}}),
        (["-cc.x=NaN"], {"x": "NaN"}),
    ],
)
def test_fields_of_the_compilation_config_become_one_object(words: list[str], config: dict[str, Any]) -> None:
    assert config_of(*words) == config


@pytest.mark.parametrize(
    "words",
    [
        ["-O"],
        ["-cc.mode"],
        ["-cc"],
        ["-cc", "3"],
        ["-cc={"],
        ["-cc.=1"],
        ["--cache-root"],
    ],
)
def test_a_spelling_that_says_nothing_is_bad_usage(words: list[str]) -> None:
    with pytest.raises(UsageProblem):
        rewrite(["precompile", "m", *words])


def test_global_options_may_stand_anywhere() -> None:
    words = ["cache", "ls", "--cache-root", "d", "-v", "--json", "-q"]
    assert rewrite(words) == ["--cache-root", "d", "-v", "-q", "cache", "ls", "--json"]
    assert rewrite(["key", "m", "--cache-root=a=b"]) == ["--cache-root", "a=b", "key", "m"]


def test_nothing_after_a_double_dash_is_touched() -> None:
    assert rewrite(["key", "--", "-O2", "-v"]) == ["key", "--", "-O2", "-v"]
