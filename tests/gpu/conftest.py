"""What tests on a device share: loaded models, what users have today, and the figures that are kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.core import CompilationConfig, Deployment
from graphkiln.core.runner import Runner
from tests.gpu.models import folder_of

SCRIPTS = Path(__file__).parents[2] / "scripts" / "gpu"
# Where the figures of a run go; not kept where nobody asks for them.
REPORT = "GPU_REPORT"
STOCK_BATCHES = (1, 64)
MAX_NUM_SEQS, MAX_TOKENS = 256, 2048
_LIMIT_S = 240.0

Load = Callable[..., Runner]


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """What was measured, by name; written when the session ends."""
    device = torch.cuda.get_device_properties(0)
    import transformers
    import triton

    found: dict[str, Any] = {
        "card": device.name,
        "memory_mib": device.total_memory >> 20,
        "multiprocessors": device.multi_processor_count,
        "driver": _driver(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "transformers": transformers.__version__,
        },
    }
    yield found
    if REPORT in os.environ:
        Path(os.environ[REPORT]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def stock(
    folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], dict[str, Any]]]:
    """What measures a step of transformers under torch.compile(reduce-overhead): by batch size.

    Compiled side by side in processes of their own, when the first is asked for; timed one by one.
    """
    scratch = tmp_path_factory.mktemp("stock")
    folder = folder_of("llama-1b", folders)
    command = [sys.executable, str(SCRIPTS / "stock.py"), str(folder)]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    children = {
        batch: subprocess.Popen(
            [*command, str(batch), str(scratch / f"{batch}.json"), str(scratch / f"{batch}.go")],
            env=environment,
        )
        for batch in STOCK_BATCHES
    }

    def measure(batch: int) -> dict[str, Any]:
        (scratch / f"{batch}.go").touch()
        assert children[batch].wait(_LIMIT_S) == 0
        found: dict[str, Any] = json.loads((scratch / f"{batch}.json").read_text())
        return found

    yield measure
    for child in children.values():
        child.kill()
        child.wait()


@pytest.fixture(scope="session")
def load(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """What loads a model of a shape under a configuration, without graphs of its own."""
    root = tmp_path_factory.mktemp("cache")
    held: dict[Any, Runner] = {}

    def loaded(shape: str, **config: Any) -> Runner:
        from graphkiln.core.start import load_built

        key = (shape, *sorted(config.items()))
        if key not in held:
            runner, _ = load_built(
                deployment(folder_of(shape, folders)), CompilationConfig(**config), cache_root=root
            )
            held[key] = runner
        return held[key]

    return loaded


def deployment(folder: Path) -> Deployment:
    """Returns the deployment that all tests load: random weights on the device here."""
    return Deployment(
        str(folder),
        dtype="bfloat16",
        load_format="dummy",
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_TOKENS,
        device="cuda",
    )


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
