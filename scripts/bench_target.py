#!/usr/bin/env python3
"""Times `precompile --target` as whole processes, over what such a process cannot do without.

    scripts/bench_target.py MODEL_FOLDER [--target h200] [--dtype bfloat16] [--repeats N] [--json FILE]

`least` imports torch, sees the described device, builds the model of shapes, lets Dynamo trace it once
and Inductor compile its distinct pieces, and keeps nothing: no key, no attention kernels, no entry. Both
start with an empty cache, and run one after the other, so that the ratio compares like with like. Peak
memory is that of the largest process of each. Run it with the interpreter that graphkiln is installed in.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST, MOST_GIB = 1.3, 3.0
LEAST = "--least"


def main() -> int:
    """Runs both, prints seconds, ratio and memory; exit status 1 when a goal is missed."""
    options = _options()
    if options.least:
        least(options.model, options.dtype, options.target)
        return 0
    rows: dict[str, list[tuple[float, float]]] = {"least": [], "precompile": []}
    asked = [options.model, "--dtype", options.dtype, "--target", options.target]
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="graphkiln-bench-") as scratch:
            rows["least"].append(_timed([__file__, LEAST, *asked], Path(scratch, "least")))
            command = ["-m", "graphkiln.cli", "-q", "--cache-root", f"{scratch}/root", "precompile", *asked]
            rows["precompile"].append(_timed(command, Path(scratch, "precompile")))
        took = "  ".join(f"{name} {found[-1][0]:.1f} s" for name, found in rows.items())
        print(f"{repeat + 1}/{options.repeats}  {took}", file=sys.stderr)
    ratio = statistics.median(
        ours[0] / base[0] for ours, base in zip(rows["precompile"], rows["least"], strict=True)
    )
    peak = max(gib for _, gib in rows["precompile"])
    for name, found in rows.items():
        seconds = statistics.median(one[0] for one in found)
        print(f"{name:<12}{seconds:8.1f} s{max(one[1] for one in found):8.2f} GiB")
    print(f"precompile over least {ratio:.2f} (at most {MOST}), peak {peak:.2f} GiB (under {MOST_GIB})")
    print(f"load averages at the end of the run: {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": rows, "ratio": ratio}, indent=1) + "\n")
    return 0 if ratio <= MOST and peak < MOST_GIB else 1


def least(model: str, dtype: str, target: str) -> None:
    """Traces the model once and compiles its distinct pieces for the device, in this process."""
    from graphkiln.core.target.described import become
    from graphkiln.core.target.description import find_description

    become(find_description(target))
    from graphkiln.core import CompilationConfig, Deployment
    from graphkiln.core.compile.build import split_capture
    from graphkiln.core.compile.inductor import compile_piece
    from graphkiln.core.models.load import build
    from graphkiln.core.parts import call_context, find_parts
    from graphkiln.core.plan import make_plan
    from graphkiln.core.trace.capture import capture

    deployment = Deployment(model, dtype=dtype, target=target)
    plan = make_plan(deployment, CompilationConfig())
    assert plan.source is not None
    served = build(plan.source, deployment, weights="none", device=plan.target.torch_device)
    context = call_context(served, deployment)
    count = plan.example_tokens
    parts = find_parts(served.backbone, plan.config, served.example_inputs, count, context)
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            traced = capture(part.module, tuple(part.arguments(count)), part.dynamic)
            _, pieces, _ = split_capture(traced, plan.compilation.cutting_ops)
            for settings in plan.settings(2, Path(scratch), encoder=part.encoder):
                for piece in pieces:
                    compile_piece(piece, settings)


def _timed(command: list[str], home: Path) -> tuple[float, float]:
    """Returns the seconds of one process with a home of its own, and the GiB of its largest process."""
    (home / "tmp").mkdir(parents=True)
    environ = {**os.environ, "HOME": str(home), "TMPDIR": str(home / "tmp"), "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, *command], env=environ, stdout=subprocess.DEVNULL)
    # Of this child and those that it waited for, which no later child adds to.
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - began
    if status != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, usage.ru_maxrss / 2**20


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder with config.json")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument(LEAST, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
