"""The plan and the dispatch rule against the table of observed answers."""

from __future__ import annotations

from typing import Any

from graphkiln.core.config.capture_sizes import decode_widths
from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.descriptor import BatchDescriptor, Step
from graphkiln.core.graphs.dispatch import Dispatcher
from graphkiln.core.graphs.plan import GraphPlan, GraphRequest, Microbatches, lora_cases, plan_graphs
from tests.config.oracle import compare, facts, needs

_NAMES = (
    "num_tokens", "num_reqs", "uniform_token_count", "max_query_len", "num_active_loras", "num_ubatches",
)  # fmt: skip


@needs("dispatch")
def test_graphs_are_planned_and_dispatched_as_observed() -> None:
    compare("dispatch", _answer, {})


def _answer(given: dict[str, Any]) -> dict[str, Any]:
    plan = plan_graphs(_request(given["config"]))
    if given["ask"] == "capture":
        return {
            "output": {
                "lora_cases": list(plan.lora_cases),
                "needs_capture": bool(plan.descriptors),
                "descriptors": {mode.name: [_row(graph) for graph in plan.of(mode)] for mode in plan.modes},
            }
        }
    return {"output": _dispatched(plan, given)}


def _dispatched(plan: GraphPlan, given: dict[str, Any]) -> dict[str, Any]:
    query = dict(given["query"])
    captured = plan.descriptors if query.pop("captured", True) else ()
    graph = Dispatcher(captured, plan.lora_cases).dispatch(Step(**query))
    return {"cg_mode": graph.mode.name, **dict(zip(_NAMES, _row(graph), strict=True))}


def _row(graph: BatchDescriptor) -> list[int | None]:
    return [getattr(graph, name) for name in _NAMES]


def _request(config: dict[str, Any]) -> GraphRequest:
    length, requests = config["decode_query_len"], config["max_num_seqs"]
    schedule = tuple(tuple(row) for row in config.get("draft_schedule", ()))
    widths = decode_widths(
        facts(max_num_seqs=requests, num_speculative_tokens=length - 1, draft_schedule=schedule)
    )
    lora, split = config.get("lora"), config.get("ubatches")
    by_count = bool(lora and lora["cudagraph_specialize_lora"] and lora["specialize_active_lora"])
    return GraphRequest(
        mode=CUDAGraphMode[config["cudagraph_mode"]],
        sizes=tuple(config["cudagraph_capture_sizes"]),
        max_num_seqs=requests,
        decode_lengths=tuple(widths),
        lora_cases=lora_cases(lora["max_loras"] if lora else None, by_count=by_count),
        varlen_decode=config.get("varlen_decode", False),
        microbatches=Microbatches(split["count"], split["decode_token_threshold"]) if split else None,
        mixed_limit=requests * length if config.get("use_kda_recoverssm") else None,
    )
