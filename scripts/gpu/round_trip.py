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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TARGET = "h200"
MODELS = ("preset:llama-1b", "preset:llama-30l", "user_kernels:kernels", "own_attention:make")
# Where the two factories lie.
CODE = (Path(__file__).parent, Path(__file__).parents[2] / "tests" / "models")
OPTIONS = ("-O2", "--target", TARGET)
_REFUSING = "#!/bin/sh\nexit 77\n"


def main() -> int:
    command, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    if command == "again":
        return built_again(json.loads(folder.read_text()))
    models = sys.argv[3 if command == "build" else 4 :] or MODELS
    if command == "build":
        return max(graphkiln(folder, "precompile", model).returncode for model in models)
    found = {}
    for model in models:
        found[model] = measured(folder, model)
        # After each: a machine that is lent may be taken back.
        Path(sys.argv[3]).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(one["sound"] for one in found.values()) else 1


def graphkiln(
    root: Path, command: str, model: str, *more: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "graphkiln.cli", "--cache-root", str(root), "-q", command, model]
    words += [*OPTIONS, "--dtype", dtype_of(model), *more, "--json"]
    done = subprocess.run(words, env=with_code(env or os.environ), stdout=subprocess.PIPE, text=True)
    print(command, model, "exit", done.returncode, file=sys.stderr)
    return done


def with_code(env: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which the models of factories can be imported."""
    return {**env, "PYTHONPATH": os.pathsep.join([env.get("PYTHONPATH", ""), *map(str, CODE)])}


def dtype_of(model: str) -> str:
    # What a factory makes is of the dtype that it says.
    return "bfloat16" if model.startswith("preset:") else "auto"


def measured(folder: Path, model: str) -> dict[str, Any]:
    """Returns what happened to one model: a hit without means, its numbers, the same built on the device."""
    with tempfile.TemporaryDirectory() as scratch:
        bare = without_means(Path(scratch))
        hit = graphkiln(folder, "warm", model, "--require-hit", env=bare)
        script = Path(__file__).with_name("started.py")
        words = [sys.executable, str(script), str(folder), model, dtype_of(model), TARGET]
        ours = subprocess.run(words, env=with_code(bare), stdout=subprocess.PIPE, text=True)
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


if __name__ == "__main__":
    sys.exit(main())
