"""The decode step that users have today: transformers with StaticCache under torch.compile(reduce-overhead).

    python scripts/gpu/stock.py CONFIG_FOLDER BATCH OUT

Compiles, makes OUT.ready, waits for OUT.go, then times and writes OUT.json: medians of 3 rounds of 50 steps,
one after the other, with 512 tokens in the cache before each round. Weights and cache are random numbers.
"""

from __future__ import annotations

import inspect
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

CONTEXT, SLOTS, ROUNDS, STEPS, WARMUPS = 512, 576, 3, 50, 10


def main() -> None:
    folder, batch, out = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        cache = StaticCache(config=config, max_cache_len=SLOTS)
        ids = torch.randint(config.vocab_size, (batch, 1))
        position = torch.full((batch, 1), CONTEXT)
    parameters = inspect.signature(type(model).forward).parameters
    called = {"past_key_values" if "past_key_values" in parameters else "cache": cache}
    step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True, dynamic=False)

    def run() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return step(input_ids=ids, position_ids=position, use_cache=True, **called).logits

    def rewind() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(CONTEXT)

    began = time.perf_counter()
    with torch.no_grad():
        # The cache makes its tensors in a first call, which must not be a compiled one.
        model(input_ids=ids, position_ids=position, use_cache=True, **called)
        for layer in cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        rewind()
        for _ in range(WARMUPS):
            run()
        torch.cuda.synchronize()
        compiled = time.perf_counter() - began
        Path(f"{out}.ready").touch()
        while not Path(f"{out}.go").exists():
            time.sleep(0.05)
        rounds = []
        for _ in range(ROUNDS):
            rewind()
            for _ in range(WARMUPS):
                run()
            rounds.append(steps_ms(run))
    found = {"batch": batch, "ms": statistics.median(rounds), "rounds": rounds, "first_s": compiled}
    Path(f"{out}.json").write_text(json.dumps(found))


def steps_ms(run) -> float:  # type: ignore[no-untyped-def]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in pairwise(marks))


if __name__ == "__main__":
    main()
