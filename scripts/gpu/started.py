"""One start from an entry on its device, as a process: what it spawned, compiled, gave and captured.

    python scripts/gpu/started.py ROOT MODEL DTYPE TARGET

Prints one line of JSON. `round_trip.py` runs it where nothing can be compiled.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

COUNTS = (1, 7, 64, 300, 2048)


def started(root: Path, model: str, dtype: str, target: str) -> dict[str, Any]:
    """Returns a start from the entry: what was spawned and compiled, the first call, numbers, graphs."""
    spawned: list[str] = []
    sys.addaudithook(
        lambda event, args: spawned.append(str(args[:1])) if event == "subprocess.Popen" else None
    )
    began = time.perf_counter()
    import torch
    import triton

    from graphkiln.core import CompilationConfig, Deployment
    from graphkiln.core.start import load_model

    compiled: list[str] = []
    triton.knobs.compilation.listener = lambda **facts: compiled.append(str(facts.get("src")))
    torch.cuda.init()
    imported = time.perf_counter() - began
    deployment = Deployment(model, dtype=dtype, target=target)
    began = time.perf_counter()
    runner = load_model(deployment, CompilationConfig(optimization_level=2), cache_root=root)
    loaded = time.perf_counter() - began
    report = runner.report
    assert report is not None
    first, _ = timed(runner, 1)
    again, _ = timed(runner, 1)
    own = getattr(runner.served.backbone, "reference", None)
    eager = runner.served if own is not None else eager_model(deployment, runner.served.device)
    numbers = compare(runner, eager, own)
    # What a factory makes takes the arguments that it likes, and gives no logits.
    steps = stepped(runner, eager) if runner.served.vocab_size is not None else []
    graphs = captured(runner) if runner.served.vocab_size is not None else []
    attends = bool(runner.served.layers)
    sealed = not attends or (runner.backend.name == "triton" and bool(runner.served.launches))
    quiet = not spawned and not compiled and report.outcome == "hit"
    return {
        "sound": quiet and sealed and all(row["ok"] for row in (*numbers, *steps, *graphs)),
        "outcome": report.outcome,
        "counts": dict(report.counts),
        "phases": report.phases,
        "notes": report.notes,
        "spawned": spawned,
        "compiled": compiled,
        "import_seconds": imported,
        "loaded_seconds": loaded,
        "first_call_seconds": first,
        "second_call_seconds": again,
        "attention": runner.backend.name,
        "numbers": numbers,
        "steps": steps,
        "graphs": graphs,
    }


def timed(runner: Any, count: int) -> tuple[float, Any]:
    import torch

    from graphkiln.core.start import call_context

    inputs = runner.served.example_inputs(count)
    with call_context(runner.served, runner.deployment)(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        output = runner(*inputs)
        torch.cuda.synchronize()
    return time.perf_counter() - began, output


def eager_model(deployment: Any, device: Any) -> Any:
    from graphkiln.core.models.load import build
    from graphkiln.core.models.source import identify

    return build(identify(deployment), deployment, device=device)


def compare(runner: Any, eager: Any, forward: Any = None) -> list[dict[str, Any]]:
    """Returns the entry's outputs against those of the model's own code, attention in plain PyTorch.

    `forward` is called in place of that code.
    """
    import torch

    from graphkiln.core.compile.rounding import rounded_otherwise
    from graphkiln.core.start import call_context

    forward, rows = forward or eager.backbone.forward, []
    for count in COUNTS:
        _, output = timed(runner, count)

        def run(count: int = count) -> Any:
            with torch.no_grad(), call_context(eager, runner.deployment)(count):
                return forward(*eager.example_inputs(count))

        with rounded_otherwise(eager.backbone):
            moved = run()
        rows.append({"tokens": count, **held(output, run(), moved)})
    return rows


def held(got: Any, wanted: Any, moved: Any) -> dict[str, Any]:
    """Returns how far what came is from what the model makes, and how far rounding alone may take it."""
    from graphkiln.core.compile.check import carried, compared

    error, tolerance = compared(got, wanted)
    tolerance = max(tolerance, carried(wanted, moved))
    return {"error": error, "tolerance": tolerance, "ok": error <= tolerance}


def stepped(runner: Any, eager: Any) -> list[dict[str, Any]]:
    """Returns steps of a server, each with what served it, against the model's own code on the same steps."""
    from graphkiln.core.compile.rounding import rounded_otherwise
    from graphkiln.core.graphs.descriptor import step_of
    from graphkiln.core.ops.plain import PlainTorch
    from graphkiln.core.runner import Batch, Request, Runner

    # The second with caches of its own: rounding goes on through them.
    plain, moved = (
        Runner(eager, eager.backbone.forward, None, runner.deployment, num_blocks=512, backend=PlainTorch())
        for _ in range(2)
    )
    blocks = [tuple(range(40 * number, 40 * (number + 1))) for number in range(9)]
    done, rows = [0] * 9, []
    # Prefill alone, decode alone, prefill beside decode, drafts' lengths, decode of many.
    for lengths in ([300], [1], [1, 7], [1, 1, 64], [4, 4, 4], [1] * 9, [1, 1], [1, 1, 1, 200]):
        requests = []
        for number, length in enumerate(lengths):
            tokens = tuple(
                (31 * number + 7 * at + 1) % 250 for at in range(done[number], done[number] + length)
            )
            requests.append(Request(tokens, done[number], blocks[number]))
            done[number] += length
        batch = Batch(tuple(requests))
        with rounded_otherwise(eager.backbone):
            rounded = moved.execute(batch)
        step = step_of(lengths, [length > 1 for length in lengths])
        mode = runner.graphs.dispatch(step).mode.name if runner.graphs is not None else "NONE"
        row = {"lengths": lengths, "served_by": mode}
        rows.append({**row, **held(runner.execute(batch), plain.execute(batch), rounded)})
    prompt = [1, 2, 3, 5, 8]
    rows.append({"generated": runner.generate_greedy(prompt, 8), "ok": True})
    return rows


def captured(runner: Any) -> list[dict[str, Any]]:
    """Returns graphs captured from the entry, replayed on fresh inputs and compared."""
    from graphkiln.core.config.modes import CUDAGraphMode
    from graphkiln.core.graphs.capture import open_capturer
    from graphkiln.core.graphs.descriptor import BatchDescriptor

    capturer, rows = open_capturer(runner), []
    for mode in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL):
        for tokens in (64, 8, 1):
            decode = (tokens, 1) if mode is CUDAGraphMode.FULL else ()
            descriptor = BatchDescriptor(mode, tokens, *decode)
            taken = capturer.capture(descriptor)
            replayed = capturer.replay(descriptor, 1)
            row = {"mode": mode.name, "tokens": tokens, "seconds": taken.seconds, "ok": replayed.ok}
            rows.append({**row, "error": replayed.max_abs_error, "tolerance": replayed.tolerance})
    return rows


if __name__ == "__main__":
    print(json.dumps(started(Path(sys.argv[1]), *sys.argv[2:])))
