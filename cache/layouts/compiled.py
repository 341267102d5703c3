"""What Inductor pickled about one compiled graph: sources, graph, settings; only looked into."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphkiln.cache.layouts.pickled_values import Made, attributes_of, nested, plain_text
from graphkiln.cache.layouts.pickles import PickleFault, read_pickle

_GRAPH = "torch._inductor.output_code.CompiledFxGraph"
_RESULT = "torch._functorch._aot_autograd.aot_autograd_result."
# Artifacts are wrapped in a pickle of a few layers of bytes.
_MOST_LAYERS = 4
_SETTING = re.compile(r"^(torch(?:\.\w+)+\.config(?:\.\w+)+) = (.+)$", re.MULTILINE)
_VARIABLE = re.compile(r"^os\.environ\['(\w+)'\] = (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^# torch (version|git version): (\S+)", re.MULTILINE)
# A line of the key of a graph: the digest of its value, its name, its value.
_KEY_LINE = re.compile(r"\[\w+\] ([^:]+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Compiled:
    """One compiled graph. Texts are empty and mappings bare where the pickle does not hold them.

    `settings` are torch's settings that were not the defaults, `environment` the variables that torch noted,
    `key` what the graph's own key was made of. `kernels` counts generated kernels, `vectorised` those for
    a CPU that use its vectors; None where it is not said.
    """

    source_name: str = ""
    source: str = ""
    graph: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    key: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    kernels: int | None = None
    vectorised: int | None = None
    seconds: float | None = None


def read_compiled(data: bytes) -> Compiled:
    """Return what a pickled result of Inductor or AOTAutograd holds; `PickleFault` where it is no pickle."""
    value: Any = data
    for _ in range(_MOST_LAYERS):
        if not isinstance(value, bytes):
            break
        value = read_pickle(value)
    objects = [one for one in nested(value) if isinstance(one, Made)]
    graph = next((one.attributes for one in objects if one.name == _GRAPH), {})
    result = next((one.attributes for one in objects if one.name.startswith(_RESULT)), {})
    info = next((one.attributes for one in objects if "fx_graph_cache_info" in one.attributes), {})
    return _compiled(graph, result, info)


def sources_of(data: bytes) -> Compiled | None:
    """Return the same, or None where it cannot be read."""
    try:
        return read_compiled(data)
    except PickleFault:
        return None


def _compiled(graph: Mapping[str, Any], result: Mapping[str, Any], info: Mapping[str, Any]) -> Compiled:
    script = _str(graph.get("runnable_graph_str"))
    metrics = attributes_of(graph.get("metrics_deltas"))
    lines = graph.get("_fx_graph_cache_debug_lines") or _second(info.get("fx_graph_cache_info"))
    taken = result.get("forward_time_taken_ns", graph.get("_time_taken_ns"))
    devices = next((one for one in nested(graph.get("device_types")) if isinstance(one, list) and one), [])
    return Compiled(
        source_name=_str(graph.get("cache_key")),
        source=_str(graph.get("source_code")),
        graph=_str(result.get("aot_forward_graph_str")) or _str(graph.get("inductor_post_grad_graph_str")),
        settings={name: text for name, text in _SETTING.findall(script)},
        environment={name: _literal(text) for name, text in _VARIABLE.findall(script)},
        key=_key(lines),
        versions={
            "torch" if name == "version" else "torch commit": text for name, text in _VERSION.findall(script)
        },
        devices=tuple(map(plain_text, devices)),
        kernels=_int(metrics.get("generated_kernel_count")),
        vectorised=_int(metrics.get("generated_cpp_vec_kernel_count")),
        seconds=taken / 1e9 if isinstance(taken, int) else None,
    )


def _key(lines: Any) -> dict[str, str]:
    found = {}
    for line in lines if isinstance(lines, list) else ():
        match = _KEY_LINE.fullmatch(line) if isinstance(line, str) else None
        if match:
            found[match[1]] = match[2]
    return found


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _second(value: Any) -> Any:
    return value[1] if isinstance(value, (tuple, list)) and len(value) > 1 else None


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None
