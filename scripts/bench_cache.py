#!/usr/bin/env python3
"""Wall time of the cache commands on a generated tree: 300 entries, 5,000 files, 2 GB.

Each command is a process of its own, started as a person starts it; the best of several runs counts, as
wall time and as CPU time, which tells how much of it a busy machine added.
Where huggingface_hub is installed, `hf cache ls` is measured on a tree of the same shape. A Typer
app with one command shows what no command line of this kind can do without. A vLLM cache of 200 entries
is listed too: copies of a small entry, each with a key and an AOT folder of its own.

    python scripts/bench_cache.py [--keep DIR] [--runs N] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.layouts.trees import SOURCE, Vllm

ENTRIES, FILES, BYTES = 300, 5_000, 2 * 10**9
VLLM_ENTRIES, VLLM_TEXT_BYTES, VLLM_GRAPH_BYTES = 200, 800_000, 600_000
# entry.json, factors.json, manifest.json, graph.py, wiring.json, two sources.
FIXED_FILES = 7
BARE = "import typer\napp = typer.Typer()\n@app.command()\ndef hello(name: str) -> None: ...\napp()\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the trees here, and use those there")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each command")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="graphkiln-bench-"))
    try:
        rows = measured(folder, asked.runs)
    finally:
        if asked.keep is None:
            shutil.rmtree(folder)
    if asked.json:
        print(json.dumps({"entries": ENTRIES, "files": FILES, "bytes": BYTES, "seconds": rows}, indent=1))
        return 0
    print(f"{ENTRIES} entries, {FILES} files, {BYTES / 1e9:g} GB; best of {asked.runs}, in seconds")
    print(f"{'':40} {'wall':>7} {'cpu':>7}")
    for name, seconds in rows.items():
        print(f"{name:40} {seconds[0]:7.2f} {seconds[1]:7.2f}" if seconds else f"{name:40}       -       -")
    return 0


def measured(folder: Path, runs: int) -> dict[str, tuple[float, float] | None]:
    """Returns the best wall and CPU time of each command, None for one that is not here."""
    ours, theirs, bare = folder / "graphkiln", folder / "hub", folder / "bare.py"
    vllm = folder / "vllm"
    made(ours, make_ours)
    made(vllm, make_vllm)
    made(theirs, make_hub)
    bare.write_text(BARE)
    ids = command("cache", "ls", "--ids", root=ours, output=True).split()
    one, other = ids[0], ids[1]
    has_hub = importlib.util.find_spec("huggingface_hub") is not None
    hub = [sys.executable, "-m", "huggingface_hub.cli.hf", "cache", "ls", "--cache-dir", str(theirs)]
    commands: dict[str, list[str] | None] = {
        "bare Typer app --help": [sys.executable, str(bare), "--help"],
        "graphkiln --help": line("--help"),
        "graphkiln cache ls": line("cache", "ls", root=ours),
        "graphkiln cache ls --filter (by factor)": line(
            "cache", "ls", "--filter", "compiler.torch!=2.13.0", root=ours
        ),
        f"graphkiln cache ls --layout vllm ({VLLM_ENTRIES})": line("cache", "ls", "--layout", f"vllm:{vllm}"),
        "graphkiln cache inspect": line("cache", "inspect", one, root=ours),
        "graphkiln cache diff": line("cache", "diff", one, other, root=ours),
        "graphkiln cache prune (a plan)": line("cache", "prune", "--superseded", root=ours),
        "hf cache ls": hub if has_hub else None,
        "graphkiln cache verify (all bytes)": line("cache", "verify", root=ours),
        "sha256 of the same bytes, one thread": [sys.executable, "-c", HASHING, str(ours)],
    }
    return {name: None if words is None else best(words, runs) for name, words in commands.items()}


HASHING = """
import hashlib, sys
from pathlib import Path
for path in Path(sys.argv[1]).rglob("*"):
    if path.is_file():
        with open(path, "rb") as stream:
            hashlib.file_digest(stream, "sha256")
"""


def line(*words: str, root: Path | None = None) -> list[str]:
    place = ["--cache-root", str(root)] if root else []
    return [str(Path(sys.executable).with_name("graphkiln")), *words, *place]


def command(*words: str, root: Path, output: bool = False) -> str:
    return subprocess.run(line(*words, root=root), check=True, capture_output=output, text=True).stdout


def best(words: list[str], runs: int) -> tuple[float, float]:
    walls, cpus = [], []
    for _ in range(runs):
        began, before = time.perf_counter(), cpu_seconds()
        done = subprocess.run(words, capture_output=True, text=True)
        walls.append(time.perf_counter() - began)
        cpus.append(cpu_seconds() - before)
        # 1 is an answer too: `diff` says so where two entries differ.
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return min(walls), min(cpus)


def cpu_seconds() -> float:
    """Returns the CPU seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def made(place: Path, make: Callable[[Path], None]) -> None:
    """Makes a tree that is not there yet; a tree that was half made is made again."""
    if not place.exists():
        draft = place.with_name(f"{place.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        make(draft)
        os.rename(draft, place)


def shape(number: int) -> tuple[int, int]:
    """Returns how many large files the entry `number` has, and the size of each."""
    count = FILES * (number + 1) // ENTRIES - FILES * number // ENTRIES - FIXED_FILES
    return count, BYTES // ENTRIES // count


def make_ours(place: Path) -> None:
    """Publishes entries as a compile does, but for the flush to disk."""
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    store = Store(CacheRoot(place))
    for number in range(ENTRIES):
        count, size = shape(number)
        with store.draft((factors := factors_of(number)).key) as draft:
            artifacts = [
                draft.add_artifact(
                    {"kernel.so": hashlib.sha256(f"{number} {n}".encode()).digest() * (size // 32)}
                )
                for n in range(count)
            ]
            for name in ("model", "layers"):
                draft.add_source(f"# {name} {number}\ndef forward(x):\n    return x\n" * 200)
            pieces = [{"artifact": artifact, "range": [1, 2048]} for artifact in artifacts]
            graph = f"def piece_{number}(x):\n    return x\n" * 200
            draft.add_part("0_0", "backbone", graph, {"steps": [], "pieces": pieces}, artifacts)
            draft.set_rank("0_0", {}, {"backbone": {"pieces": {}}})
            draft.publish(header_of(number, count), factors)


def factors_of(number: int) -> Factors:
    """Returns factors about as large as real ones, about 100 KB."""
    functions = {
        f"transformers.models.m{m}": {
            f"C{c}.forward": hashlib.sha256(f"{m} {c}".encode()).hexdigest() for c in range(12)
        }
        for m in range(40)
    }
    functions["model"] = {"Model.forward": f"{number:064x}"}
    return Factors(
        env={"GRAPHKILN_CPP_FAST_MATH": False},
        config={"model": {"hidden_size": 64 + number % 30}, "dtype": "float32", "block_size": 16},
        code={"backbone": {"class": "Model", "functions": functions, "values": [], "environment": {}}},
        compiler={
            "torch": "2.13.0" if number % 3 else "2.12.1",
            "inductor": {f"option_{n}.name": n for n in range(900)},
        },
    )


def header_of(number: int, pieces: int) -> dict[str, Any]:
    return {
        "model": f"model-{number % 30}", "dtype": "float32", "target": {"name": "cpu:avx2"},
        "pieces": {"total": 3 * pieces, "distinct": pieces}, "checked": True, "command": "precompile",
        "phases": [["trace", 2.5], ["compile", 11.0]], "versions": {"torch": "2.13.0"}, "decisions": [],
    }  # fmt: skip


def make_vllm(place: Path) -> None:
    """Writes entries of one model, each of another configuration, as large as those of two layers are."""
    source = SOURCE + "# a line of some other function in the file\n" * (VLLM_TEXT_BYTES // 44)
    for number in range(VLLM_ENTRIES):
        at = 1_700_000_000.0 + 100 * number
        Vllm(place, config=f"{number:010x}", source=source, at=at, graph_bytes=VLLM_GRAPH_BYTES).write()


def make_hub(place: Path) -> None:
    """Makes a Hugging Face cache with as many repositories, files and bytes; the bytes are holes."""
    for number in range(ENTRIES):
        count, size = shape(number)
        repo = place / f"models--bench--model-{number}"
        revision = hashlib.sha1(str(number).encode()).hexdigest()
        snapshot = repo / "snapshots" / revision
        for folder in (repo / "blobs", repo / "refs", snapshot):
            folder.mkdir(parents=True)
        (repo / "refs" / "main").write_text(revision)
        for at in range(count + FIXED_FILES):
            blob = repo / "blobs" / hashlib.sha256(f"{number} {at}".encode()).hexdigest()
            with open(blob, "wb") as stream:
                stream.truncate(size if at < count else 4096)
            (snapshot / f"file-{at}.bin").symlink_to(f"../../blobs/{blob.name}")


if __name__ == "__main__":
    sys.exit(main())
