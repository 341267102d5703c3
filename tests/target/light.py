"""What entries for the H200 hold that the CUDA build of torch made: the CPU build has to give the same.

CI has the CPU build, which is the light route. `python -m tests.target.light` records anew, from a clone's
top folder and with the CUDA build of the recorded torch, Triton, transformers and Python; it needs no GPU.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.cache.store.entries import Entry
from graphkiln.core import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.start import precompile
from graphkiln.core.target.tried import torch_version
from tests.target.crossing import described_file

RECORD = Path(__file__).with_name("light.json")
WITH_KERNELS = Path(__file__).parents[2] / "scripts" / "gpu"
LLAMA = Deployment("preset:llama", dtype="bfloat16")
KERNELS = Deployment("user_kernels:kernels")
# What of the compiler factor is digests of graphkiln's sources.
OWN = ("pipeline", "passes")


def hold_to_the_cuda_build(entry: Path, model: Deployment) -> None:
    """Asserts that a model's entry is what the CUDA build made of it; skips where versions are others."""
    recorded = json.loads(RECORD.read_bytes())
    if versions() != recorded["versions"]:
        pytest.skip(f"the CUDA build was recorded with {recorded['versions']}, and here is {versions()}")
    assert given(entry) == recorded[model.model]


def versions() -> dict[str, str]:
    """Returns the versions that decide what is given; which build of torch is not among them."""
    return {
        "torch": torch_version(),
        **{name: metadata.version(name) for name in ("triton", "transformers")},
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def given(path: Path) -> dict[str, Any]:
    """Returns an entry's compiler factor and digests of its code factors and its files.

    What depends on graphkiln's own sources is left out where it says nothing of torch.
    """
    factors = Entry(path).factors().as_json()
    compiler = {name: value for name, value in factors["compiler"].items() if name not in OWN}
    files: dict[str, list[str]] = {}
    for file in sorted(path.glob("artifacts/*/**/*")):
        if file.suffix in (".py", ".cubin"):
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            files.setdefault("/".join(file.relative_to(path).parts[2:]), []).append(digest)
    return {
        "compiler": compiler,
        "code": {part: _digests(code) for part, code in factors["code"].items()},
        "files": {name: sorted(set(found)) for name, found in sorted(files.items())},
    }


def _digests(code: dict[str, Any]) -> dict[str, str]:
    texts = {name: json.dumps(_of_others(value), sort_keys=True) for name, value in code.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _of_others(value: Any) -> Any:
    """Returns a value without the functions and classes of graphkiln, at any depth."""
    if isinstance(value, dict):
        return {name: _of_others(inner) for name, inner in value.items() if not name.startswith("graphkiln.")}
    if isinstance(value, list):
        own = any(isinstance(inner, str) and inner.startswith("graphkiln.") for inner in value)
        return "graphkiln" if own else [_of_others(inner) for inner in value]
    return value


def main() -> None:
    """Writes the record, with the CUDA build."""
    if not torch.backends.cuda.is_built():
        raise SystemExit("this is the CPU build of torch: the CUDA build is what is recorded")
    sys.path.insert(0, str(WITH_KERNELS))
    record: dict[str, Any] = {"versions": versions()}
    with tempfile.TemporaryDirectory() as scratch:
        file = described_file("h200", Path(scratch))
        for model in (LLAMA, KERNELS):
            made = precompile(replace(model, target=file), CompilationConfig(), cache_root=Path(scratch))
            assert made.entry_path is not None
            record[model.model] = given(made.entry_path)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
