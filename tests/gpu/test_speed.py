"""How long a step of decode takes: noted, never asserted, since a machine is not always the same."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from graphkiln.core.config.modes import CUDAGraphMode
from graphkiln.core.graphs.capture import open_capturer
from graphkiln.core.graphs.capturer import Way
from graphkiln.core.graphs.descriptor import BatchDescriptor
from graphkiln.core.graphs.examine import capture_all
from graphkiln.core.report import Silent
from graphkiln.core.runner import Batch, Request, Runner
from tests.gpu.conftest import STOCK_BATCHES, Load, Stock
from tests.gpu.models import SHAPES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BATCHES = (1, 8, 64)
# As scripts/gpu/stock.py does.
CONTEXT, ROUNDS, STEPS, WARMUPS = 512, 3, 50, 10


def median_ms(step: Callable[[], Any]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        for _ in range(WARMUPS):
            step()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        torch.cuda.synchronize()
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        torch.cuda.synchronize()
        rounds.append(statistics.median(one.elapsed_time(after) for one, after in pairwise(marks)))
    return float(round(statistics.median(rounds), 4))


def decode(runner: Runner, requests: int) -> Batch:
    """One new token for each request, with 512 in the cache."""
    each = CONTEXT // runner.deployment.block_size + 1
    blocks = runner.allocator.take(each * requests)
    runner.allocator.give_back(blocks)
    return Batch(
        tuple(
            Request((7 * at + 3,), CONTEXT, tuple(blocks[at * each : (at + 1) * each]))
            for at in range(requests)
        )
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_by_every_way(load: Load, shape: str, figures: dict[str, Any]) -> None:
    runner = load(shape)
    capturer = open_capturer(runner)
    graphs = [
        *(BatchDescriptor(CUDAGraphMode.PIECEWISE, count) for count in BATCHES),
        *(BatchDescriptor(CUDAGraphMode.FULL, count, count, 1) for count in BATCHES),
    ]
    assert capture_all(capturer, graphs, Silent()).failure is None
    assert runner.graphs is not None
    rows: dict[str, Any] = {}
    for graph in graphs:
        runner.graphs.serve([graph])
        batch = decode(runner, graph.num_tokens)
        row = rows.setdefault(f"batch {graph.num_tokens}", {})
        inputs = runner.prepare(batch, graph)

        def step(graph: BatchDescriptor = graph, inputs: Any = inputs) -> None:
            with torch.no_grad():
                runner.served.compute_logits(inputs.last_tokens(runner.run(inputs, graph)))

        row[graph.mode.name] = median_ms(step)
        if graph.mode is CUDAGraphMode.FULL:
            row["execute"] = median_ms(functools.partial(runner.execute, batch))
        row[f"{graph.mode.name} launches"] = capturer.time(Way[graph.mode.name], graph).launches
        if graph.mode is CUDAGraphMode.PIECEWISE:
            plain = BatchDescriptor(CUDAGraphMode.NONE, graph.num_tokens, graph.num_tokens)
            for way in (Way.EAGER, Way.COMPILED):
                timed = capturer.time(way, plain)
                row[f"{way.value}, forward alone"] = round(timed.ms, 3)
                row[f"{way.value} launches"] = timed.launches
    capturer.release()
    figures.setdefault("decode_ms", {})[shape] = rows


@pytest.mark.parametrize("batch", STOCK_BATCHES)
def test_decode_as_users_have_it_today(stock: Stock, batch: int, figures: dict[str, Any]) -> None:
    figures.setdefault("reduce_overhead", {})[f"llama-1b batch {batch}"] = stock.measure(batch)
