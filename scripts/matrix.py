#!/usr/bin/env python3
"""Compiles one model under every kind of setting and prints, for each, whether it came out right.

    scripts/matrix.py MODEL [--only TEXT] [--json FILE]

Each row is precompiled into a cache of its own, shown by `cache inspect`, started again by a process
that may compile nothing, and decoded by another one, whose tokens must be those that transformers
generates by itself. Run it with the interpreter that graphkiln is installed in; MODEL is a folder with
config.json and safetensors whose layers are all alike. Exit status 1 when a row is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DECODE = Path(__file__).with_name("matrix_decode.py")
LARGEST = 128
RANGES, SIZES = "-cc.compile_ranges_endpoints=[8,64]", "-cc.compile_sizes=[1,16]"
SHAPES = "-cc.dynamic_shapes_config.type="
BOTH = ((1, 1), (16, 16), (1, 8), (9, 64), (65, LARGEST))
# A model of equal layers has a piece before the first attention, one between two, one after the last.
PIECES = 3


@dataclass(frozen=True)
class Case:
    """What is typed, the ranges that it asks for, how many distinct pieces there are, and how many artifacts.

    Equal code is one artifact. A size is a number in the code of every piece. Of the three ranges two
    are served by the same code, but for the last piece, whose code is the same for all three: 3 + 2.
    Without a hint of the token count the range itself shows in all code: nothing is shared then.
    """

    words: tuple[str, ...]
    artifacts: int
    ranges: tuple[tuple[int, int], ...] = ((1, LARGEST),)
    pieces: int = PIECES


CASES = {
    "O0": Case(("-O0",), 0, (), 0),
    "O1": Case(("-O1",), 3),
    "O2": Case(("-O2",), 3),
    "O1 ranges": Case(("-O1", RANGES), 5, BOTH[2:]),
    "O2 sizes": Case(("-O2", SIZES), 9, ((1, 1), (16, 16), (1, LARGEST))),
    "O1 ranges, sizes": Case(("-O1", RANGES, SIZES), 11, BOTH),
    "O2 ranges, sizes": Case(("-O2", RANGES, SIZES), 11, BOTH),
    "O2 ranges, sizes, unbacked": Case(("-O2", RANGES, SIZES, f"{SHAPES}unbacked"), 15, BOTH),
    "O2 ranges, sizes, oblivious": Case(("-O2", RANGES, SIZES, f"{SHAPES}backed_size_oblivious"), 11, BOTH),
    "O2 partition": Case(("-O2", "-cc.use_inductor_graph_partition=true"), 1, pieces=1),
}


@dataclass(frozen=True)
class Row:
    """What one case came to; `wrong` says what is not as it should be."""

    outcome: str
    pieces: int
    ranges: int
    artifacts: int
    error: float
    allowed: float
    seconds: float
    wrong: tuple[str, ...]


def main() -> int:
    """Runs the cases and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder with config.json and safetensors")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the rows whose name holds it")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    options = parser.parse_args()
    model = str(Path(options.model).resolve())
    wanted = decoded("transformers", model)
    rows: dict[str, Row] = {}
    print(f"{'':<28}{'outcome':<10}{'pieces':>7}{'ranges':>7}{'artifacts':>10}{'error/allowed':>20}  seconds")
    with tempfile.TemporaryDirectory(prefix="graphkiln-matrix-") as scratch:
        for name, case in CASES.items():
            if options.only in name:
                rows[name] = row = run(case, model, Path(scratch), wanted)
                error = f"{row.error:.2e}/{row.allowed:.2e}"
                counts = f"{row.pieces:>7}{row.ranges:>7}{row.artifacts:>10}"
                told = "; ".join(row.wrong) or "right"
                print(
                    f"{name:<28}{row.outcome:<10}{counts}{error:>20}{row.seconds:>9.1f}  {told}", flush=True
                )
    if options.json:
        Path(options.json).write_text(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=1))
    return 1 if any(row.wrong for row in rows.values()) else 0


def run(case: Case, model: str, root: Path, wanted: list[int]) -> Row:
    """Returns what became of one case; equal keys of two cases share an entry of `root`."""
    began = time.monotonic()
    made = graphkiln("precompile", case.words, model, root)
    seconds = time.monotonic() - began
    again = graphkiln("warm", (*case.words, "--require-hit"), model, root)
    pieces = inspected(made["key"], root) if made["key"] else []
    ranges = {tuple(piece["range"]) for piece in pieces}
    distinct = {piece["fingerprint"] for piece in pieces}
    artifacts = {piece["artifact"] for piece in pieces}
    checked = (made["check"] or {}).get("rows", [])
    worst = max(checked, key=lambda row: row["max_abs_error"] / row["tolerance"], default=None)
    expected = {
        "the ranges": ranges == set(case.ranges),
        "the number of distinct pieces": len(distinct) == case.pieces,
        "the number of artifacts": len(artifacts) == case.artifacts,
        "the numbers": worst is None or worst["max_abs_error"] <= worst["tolerance"],
        "the second start": again["outcome"] == ("hit" if case.ranges else "bypass"),
        "what the second start compiled": not any(
            again["counts"][name] for name in ("frames_converted", "kernels_compiled")
        ),
        "the tokens": decoded("graphkiln", model, *case.words, root=root) == wanted,
    }
    return Row(
        outcome=made["outcome"],
        pieces=len(distinct),
        ranges=len(ranges),
        artifacts=len(artifacts),
        error=worst["max_abs_error"] if worst else 0.0,
        allowed=worst["tolerance"] if worst else 0.0,
        seconds=seconds,
        wrong=tuple(f"{name} is not as it should be" for name, right in expected.items() if not right),
    )


def graphkiln(command: str, words: Sequence[str], model: str, root: Path) -> dict[str, Any]:
    """Returns what a command printed with --json."""
    return told(command, model, "--max-num-batched-tokens", str(LARGEST), *words, root=root)


def inspected(key: str, root: Path) -> list[dict[str, Any]]:
    """Returns the pieces that `cache inspect` shows of an entry."""
    pieces: list[dict[str, Any]] = told("cache", "inspect", key, root=root)["pieces"]
    return pieces


def told(*words: str, root: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "graphkiln.cli", *words, "--json", "-q", "--cache-root", str(root)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}: exit status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def decoded(how: str, model: str, *words: str, root: Path | None = None) -> list[int]:
    """Returns the tokens that a process of its own decodes after a fixed prompt."""
    command = [sys.executable, str(DECODE), how, model, str(LARGEST), str(root or ""), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
