"""The configuration as a user writes it: spellings, unknown fields, nulls, and texts of bad values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode, DynamicShapesType, PerformanceMode

MODES = "NONE, STOCK_TORCH_COMPILE, DYNAMO_TRACE_ONCE, VLLM_COMPILE"
GRAPHS = "NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE"
PASSES_HAVE_NO_NOR = "pass_config has no field 'fuse_nor': did you mean fuse_norm_quant?"
SHAPES_HAVE_NO_TYP = "dynamic_shapes_config has no field 'typ': did you mean type?"


@pytest.mark.parametrize("level", [3, "3", "O3", "o3"])
def test_a_level_is_one_number_however_it_is_spelled(level: object) -> None:
    assert CompilationConfig.from_user({"optimization_level": level}).optimization_level == 3


@pytest.mark.parametrize("mode", [3, "3", "VLLM_COMPILE", "vllm_compile", CompilationMode.VLLM_COMPILE])
def test_a_mode_is_a_number_or_a_name_in_any_case(mode: Any) -> None:
    assert CompilationConfig(mode=mode).mode is CompilationMode.VLLM_COMPILE


@pytest.mark.parametrize("mode", [True, 3.0, [3], "", "4", -1])
def test_what_only_looks_like_a_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"^mode: .* is not one of NONE"):
        CompilationConfig(mode=mode)


def test_nested_values_become_what_they_name() -> None:
    config = CompilationConfig.from_user(
        {
            "performance_mode": "throughput",
            "cudagraph_mode": "full_decode_only",
            "pass_config": {"fuse_norm_quant": "True", "eliminate_noops": False},
            "dynamic_shapes_config": {"type": "unbacked"},
            "compile_sizes": [1, "cudagraph_capture_sizes"],
            "backend": "",
        }
    )
    assert config.performance_mode is PerformanceMode.THROUGHPUT
    assert config.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    assert config.pass_config.on == ("fuse_norm_quant",)
    assert config.dynamic_shapes_config.type is DynamicShapesType.UNBACKED
    assert config.compile_sizes == (1, "cudagraph_capture_sizes")
    assert config.backend == "inductor"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"modus": 3}, "compilation config has no field 'modus': did you mean mode?"),
        ({"pass_config": {"fuse_nor": 1}}, PASSES_HAVE_NO_NOR),
        ({"dynamic_shapes_config": {"typ": 1}}, SHAPES_HAVE_NO_TYP),
        ({"mode": "fast"}, f"mode: 'fast' is not one of {MODES}"),
        ({"cudagraph_mode": "FULL_PIECEWISE"}, f"cudagraph_mode: 'FULL_PIECEWISE' is not one of {GRAPHS}"),
        ({"custom_ops": ["rms_norm"]}, "custom_ops: 'rms_norm' is not all, none, +NAME or -NAME"),
        ({"custom_ops": ["+rms_nrom"]}, "custom_ops has no op 'rms_nrom': did you mean rms_norm?"),
        ({"custom_ops": ["-silu_mul"]}, "custom_ops has no op 'silu_mul': did you mean silu_and_mul?"),
        ({"compile_sizes": [0]}, "compile_sizes: 0 is below 1"),
        ({"compile_sizes": [True]}, "compile_sizes: True is not an integer"),
        ({"compile_sizes": 4}, "compile_sizes: 4 is not a list, which is written [A, B]"),
        ({"compile_ranges_endpoints": [-1]}, "compile_ranges_endpoints: -1 is below 1"),
        ({"splitting_ops": ["attention"]}, "splitting_ops: 'attention' is not namespace::op"),
        ({"pass_config": {"eliminate_noops": 1}}, "pass_config.eliminate_noops: 1 is not true or false"),
        ({"pass_config": True}, "pass_config: True is not a mapping, which is written {NAME: VALUE}"),
        ({"enforce_eager": "yes"}, "enforce_eager: 'yes' is not true or false"),
        (
            {"dynamic_shapes_config": {"type": "unbacked", "evaluate_guards": True}},
            "dynamic_shapes_config.evaluate_guards: unbacked shapes have no guards to evaluate",
        ),
        (
            {"pass_config": {"fi_allreduce_fusion_max_size_mb": 0}},
            "pass_config.fi_allreduce_fusion_max_size_mb: 0 is not a size above 0",
        ),
    ],
)  # fmt: skip
def test_a_bad_value_is_one_line_that_names_the_field(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        CompilationConfig.from_user(given)
    assert str(caught.value) == text


def test_a_null_leaves_to_us_what_can_be_left_to_us() -> None:
    given = {"mode": None, "splitting_ops": None, "cudagraph_mode": None, "compile_sizes": None}
    assert CompilationConfig.from_user(given) == CompilationConfig()


@pytest.mark.parametrize(
    "name", ["cudagraph_capture_sizes", "max_cudagraph_capture_size", "backend", "custom_ops", "pass_config"]
)
def test_a_null_that_could_mean_two_things_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: null is no value; leave the field out for its default$"):
        CompilationConfig.from_user({name: None})


def test_what_was_asked_is_plain_data_and_no_more_than_that() -> None:
    config = CompilationConfig.from_user(
        {
            "mode": 3,
            "pass_config": {"fuse_norm_quant": False},
            "compile_sizes": [1],
            "inductor_compile_config": {"cpp.threads": 1, "hook": len},
            "cache_dir": "/x",
        }
    )
    asked = config.as_asked()
    assert asked == {
        "optimization_level": 2,
        "mode": "VLLM_COMPILE",
        "pass_config": {"fuse_norm_quant": False},
        "compile_sizes": [1],
        "inductor_compile_config": {"cpp.threads": 1, "hook": str(len)},
    }
    json.dumps(asked)


@pytest.mark.parametrize(
    ("mode", "decode", "mixed", "left"),
    [
        ("NONE", "NONE", "NONE", "NONE"),
        ("PIECEWISE", "PIECEWISE", "PIECEWISE", "NONE"),
        ("FULL", "FULL", "FULL", "FULL"),
        ("FULL_DECODE_ONLY", "FULL", "NONE", "FULL_DECODE_ONLY"),
        ("FULL_AND_PIECEWISE", "FULL", "PIECEWISE", "FULL_DECODE_ONLY"),
    ],
)
def test_a_cuda_graph_mode_is_a_pair(mode: str, decode: str, mixed: str, left: str) -> None:
    found = CUDAGraphMode[mode]
    assert (found.decode.name, found.mixed.name, found.without_piecewise().name) == (decode, mixed, left)
    assert found.separate is (decode != mixed)
    assert found.piecewise is ("PIECEWISE" in (decode, mixed))
