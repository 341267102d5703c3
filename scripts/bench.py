#!/usr/bin/env python3
"""Times starts of one model as whole processes and prints them as ratios of one run.

    scripts/bench.py MODEL_FOLDER [--repeats N] [--skip-torch-compile] [--json FILE]

Every row is a process of its own with an empty HOME and temporary folder, from its spawn to the
first output for 16 tokens. `bare` imports torch and loads the same weights; it is what any start
costs at least. The rows with `weights there` count from the moment when torch is imported and the
weights are in memory, lazy imports included. Rows of one repeat run one after the other, so that
ratios of one repeat compare like with like on a machine that others share. Run it with the
interpreter that graphkiln is installed in.
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
from collections.abc import Iterator
from pathlib import Path

CASES = Path(__file__).with_name("bench_cases.py")

# Rows that count from the moment when torch is imported and the weights are in memory.
COLD_READY, AOT_READY = "cold, weights there", "AOT, weights there"
BASES = ("bare", COLD_READY, "torch.compile cold")
# Of every row: what is compared, over what, and the most that it may be.
GOALS = (("warm", "bare", 1.6), (AOT_READY, COLD_READY, 0.05), ("cold", "torch.compile cold", 0.6))


def main() -> int:
    """Runs the rows and prints them; exit status 1 when a goal is missed or outputs disagree."""
    options = _options()
    rows: dict[str, list[float]] = {}
    outputs: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="graphkiln-bench-") as scratch:
        for repeat in range(options.repeats):
            for name, seconds, checksum in _run_all(options, Path(scratch) / str(repeat)):
                rows.setdefault(name, []).append(seconds)
                outputs[name] = checksum
                print(f"{repeat + 1}/{options.repeats}  {name:<22}{seconds:8.2f} s", file=sys.stderr)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\nload averages at the end of the run: {load}")
    _print(rows)
    missed = [goal for goal in GOALS if not _holds(rows, *goal)]
    agree = _agree(outputs)
    if options.json:
        Path(options.json).write_text(json.dumps({"seconds": rows, "outputs": outputs}, indent=1) + "\n")
    for name, base, most in missed:
        print(f"missed: {name} over {base} is more than {most}")
    return 1 if missed or not agree else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder with config.json and safetensors")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-torch-compile", action="store_true", help="leave the slow rows out")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    return parser.parse_args()


def _run_all(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, float, float]]:
    model = str(Path(options.model).resolve())
    # The page cache is warm for all rows alike after the first read of the weights.
    _start("bare", model, scratch / "first")
    yield "bare", *_start("bare", model, scratch / "bare")[:2]
    root = scratch / "root"
    cold, total, since = _start("graphkiln-weights-first", model, scratch / "cold", root=root)
    yield "cold", cold, total
    yield COLD_READY, since, total
    yield "warm", *_start("graphkiln-hit", model, scratch / "warm", root=root)[:2]
    _, total, since = _start("graphkiln-aot", model, scratch / "aot", root=root)
    yield AOT_READY, since, total
    if not options.skip_torch_compile:
        filled = scratch / "inductor"
        yield "torch.compile cold", *_start("torch-compile", model, scratch / "tc-cold", inductor=filled)[:2]
        yield (
            "torch.compile filled",
            *_start("torch-compile", model, scratch / "tc-warm", inductor=filled)[:2],
        )


def _start(
    case: str, model: str, home: Path, root: Path | None = None, inductor: Path | None = None
) -> tuple[float, float, float]:
    """Returns of one child: seconds from spawn to first output, the output's sum, seconds since `ready`."""
    (home / "tmp").mkdir(parents=True)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor or home / "inductor"),
        "HF_HUB_OFFLINE": "1",
        # A busy neighbour otherwise makes spinning threads wait for each other.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if root is not None:
        environ["GRAPHKILN_CACHE_ROOT"] = str(root)
    began = time.monotonic()
    child = subprocess.run(
        [sys.executable, str(CASES), case, model], env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    # The clock is the system's: the child says when its first output was there.
    told = json.loads(child.stdout.splitlines()[-1])
    return told["at"] - began, told["sum"], told["since"] or 0.0


def _print(rows: dict[str, list[float]]) -> None:
    heads = "".join(f"{'over ' + base:>26}" for base in BASES)
    print(f"\n{'start to first output':<22}{'median s':>10}{heads}")
    for name, seconds in rows.items():
        over = [_ratio(rows, name, base) for base in BASES]
        texts = ["" if value is None else f"{value:.3f}" for value in over]
        print(f"{name:<22}{statistics.median(seconds):>10.2f}{''.join(f'{text:>26}' for text in texts)}")


def _ratio(rows: dict[str, list[float]], name: str, base: str) -> float | None:
    """Returns the median of the ratios within each repeat."""
    if base not in rows:
        return None
    return statistics.median(one / other for one, other in zip(rows[name], rows[base], strict=True))


def _holds(rows: dict[str, list[float]], name: str, base: str, most: float) -> bool:
    ratio = _ratio(rows, name, base)
    return ratio is None or ratio <= most


def _agree(outputs: dict[str, float]) -> bool:
    sums = {name: value for name, value in outputs.items() if name != "bare"}
    first = next(iter(sums.values()))
    worst = max(abs(value - first) for value in sums.values())
    print(f"\nsums of the outputs differ by {worst:.3g} of {abs(first):.6g}")
    return worst <= 1e-4 * max(abs(first), 1.0)


if __name__ == "__main__":
    sys.exit(main())
