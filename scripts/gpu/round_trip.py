"""Entries made where no GPU is, started where one is: nothing is compiled there, and the numbers are eager's.

    python scripts/gpu/round_trip.py build FOLDER            on a machine without a GPU
    python scripts/gpu/round_trip.py run FOLDER OUT.json     on the device, FOLDER carried there

    python scripts/gpu/round_trip.py again OUT.json          where it was built, with what came back

Behind the first two may stand the models, `preset:llama-30l` say, in place of all. `run` starts each in
processes that find no compiler: an empty PATH, a ptxas that refuses, fresh caches. Every graph is captured
there, and steps of prefill and decode are run, attention included. Then it compiles the same on the device,
and compares keys, builds and seconds of first calls; chooses between the configurations of kernels, and
builds by these choices. `again` builds by them too, and compares the two builds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TARGET = "h200"
MODELS = ("preset:llama-1b", "preset:llama-30l", "user_kernels:kernels")
COUNTS = (1, 7, 64, 300, 2048)
OPTIONS = ("-O2", "--target", TARGET)
_REFUSING = "#!/bin/sh\nexit 77\n"


def main() -> int:
    command, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    if command == "again":
        return built_again(json.loads(folder.read_text()))
    models = sys.argv[3 if command == "build" else 4 :] or MODELS
    if command == "build":
        return max(graphkiln(folder, "precompile", model).returncode for model in models)
    if command == "started":
        print(json.dumps(started(folder, sys.argv[3])))
        return 0
    found = {model: measured(folder, model) for model in models}
    Path(sys.argv[3]).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(one["sound"] for one in found.values()) else 1


def graphkiln(
    root: Path, command: str, model: str, *more: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "graphkiln.cli", "--cache-root", str(root), "-q", command, model]
    words += [*OPTIONS, "--dtype", dtype_of(model), *more, "--json"]
    env = {**(env or os.environ)}
    env["PYTHONPATH"] = os.pathsep.join([env.get("PYTHONPATH", ""), str(Path(__file__).parent)])
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True)
    print(command, model, "exit", done.returncode, file=sys.stderr)
    return done


def dtype_of(model: str) -> str:
    # What a factory makes is of the dtype that it says.
    return "bfloat16" if model.startswith("preset:") else "auto"


def measured(folder: Path, model: str) -> dict[str, Any]:
    """Returns what happened to one model: a hit without means, its numbers, the same built on the device."""
    with tempfile.TemporaryDirectory() as scratch:
        bare = without_means(Path(scratch))
        hit = graphkiln(folder, "warm", model, "--require-hit", env=bare)
        words = [sys.executable, __file__, "started", str(folder), model]
        ours = subprocess.run(words, env=bare, stdout=subprocess.PIPE, text=True)
        native = Path(scratch) / "native"
        cold = graphkiln(native, "precompile", model, "--no-check")
        same = graphkiln_diff(folder, native)
        choices = Path(scratch) / "choices.json"
        tuned = graphkiln(folder, "check", model, "--tune", str(choices))
        frozen = json.loads(choices.read_text()) if tuned.returncode == 0 else {"error": tuned.stdout}
        build = build_by(choices, model) if tuned.returncode == 0 else None
    seen = json.loads(ours.stdout) if ours.returncode == 0 else {"error": ours.returncode}
    report = json.loads(cold.stdout or "{}")
    return {
        "sound": hit.returncode == 0
        and seen.get("sound") is True
        and same["exit"] == 0
        and build is not None,
        "warm": json.loads(hit.stdout or "{}"),
        "started": seen,
        "cold": {name: report.get(name) for name in ("outcome", "key", "wall_seconds", "phases", "error")},
        "diff": same,
        "choices": frozen,
        "build_by_choices": build,
    }


def build_by(choices: Path, model: str) -> str | None:
    """Returns the build digest of a model that is built by a file of choices, in a cache of its own."""
    from graphkiln.cache.store.entries import Entry

    with tempfile.TemporaryDirectory() as scratch:
        graphkiln(Path(scratch), "precompile", model, "--no-check", "--choices", str(choices))
        paths = sorted(Path(scratch).glob("torch_compile_cache/*/entry.json"))
        return Entry(paths[0].parent).manifest("0_0").build_digest if paths else None


def built_again(found: dict[str, Any]) -> int:
    """Builds by the choices of the device; says for each model whether it is the build of the device."""
    same = True
    for model, one in found.items():
        with tempfile.TemporaryDirectory() as scratch:
            choices = Path(scratch) / "choices.json"
            choices.write_text(json.dumps(one["choices"]))
            here = build_by(choices, model)
        same &= here is not None and here == one["build_by_choices"]
        print(model, "here", here, "on the device", one["build_by_choices"])
    return 0 if same else 1


def without_means(scratch: Path) -> dict[str, str]:
    """Returns an environment in which nothing can be compiled and nothing was before."""
    empty, ptxas = scratch / "bin", scratch / "ptxas"
    empty.mkdir()
    ptxas.write_text(_REFUSING)
    ptxas.chmod(0o755)
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    folders = {"HOME": "home", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return {
        **kept,
        **{name: str(scratch / place) for name, place in folders.items()},
        "PATH": str(empty),
        "CC": "/nonexistent/cc",
        "CXX": "/nonexistent/c++",
        "TRITON_PTXAS_PATH": str(ptxas),
    }


def graphkiln_diff(one: Path, other: Path) -> dict[str, Any]:
    """Returns whether the entries of two roots are one build, as `cache diff` says it."""
    entries = {}
    for path in sorted(other.glob("torch_compile_cache/*/entry.json")):
        entries = {"a": one / "torch_compile_cache" / path.parent.name, "b": path.parent}
    words = [
        sys.executable,
        "-m",
        "graphkiln.cli",
        "-q",
        "cache",
        "diff",
        *map(str, entries.values()),
        "--json",
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    return {"exit": done.returncode, **json.loads(done.stdout or "{}")}


def started(root: Path, model: str) -> dict[str, Any]:
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
    deployment = Deployment(model, dtype=dtype_of(model), target=TARGET)
    began = time.perf_counter()
    runner = load_model(deployment, CompilationConfig(optimization_level=2), cache_root=root)
    loaded = time.perf_counter() - began
    report = runner.report
    assert report is not None
    first, _ = timed(runner, 1)
    again, _ = timed(runner, 1)
    own = getattr(runner.served.backbone, "reference", None)
    steps, graphs, sealed = [], [], True
    if own is None:
        eager = eager_model(deployment, runner.served.device)
        numbers, steps, graphs = compare(runner, eager), stepped(runner, eager), captured(runner)
        sealed = runner.backend.name == "triton" and bool(runner.served.launches)
    else:
        numbers = compare(runner, runner.served, own)
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

    from graphkiln.core.compile.check import compared
    from graphkiln.core.start import call_context

    rows = []
    for count in COUNTS:
        _, output = timed(runner, count)
        with torch.no_grad(), call_context(eager, runner.deployment)(count):
            wanted = (forward or eager.backbone.forward)(*eager.example_inputs(count))
        error, tolerance = compared(output, wanted)
        rows.append({"tokens": count, "error": error, "tolerance": tolerance, "ok": error <= tolerance})
    return rows


def stepped(runner: Any, eager: Any) -> list[dict[str, Any]]:
    """Returns steps of a server, each with what served it, against the model's own code on the same steps."""
    from graphkiln.core.compile.check import compared
    from graphkiln.core.graphs.descriptor import step_of
    from graphkiln.core.ops.plain import PlainTorch
    from graphkiln.core.runner import Batch, Request, Runner

    plain = Runner(
        eager, eager.backbone.forward, None, runner.deployment, num_blocks=512, backend=PlainTorch()
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
        error, tolerance = compared(runner.execute(batch), plain.execute(batch))
        step = step_of(lengths, [length > 1 for length in lengths])
        mode = runner.graphs.dispatch(step).mode.name if runner.graphs is not None else "NONE"
        row = {"lengths": lengths, "served_by": mode, "error": error, "tolerance": tolerance}
        rows.append({**row, "ok": error <= tolerance})
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
    sys.exit(main())
