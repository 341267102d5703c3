"""What tests on a device share: loaded models, what users have today, and the figures that are kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
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
def figures() -> dict[str, Any]:
    """What was measured, by name."""
    device = torch.cuda.get_device_properties(0)
    import transformers
    import triton

    return {
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


@pytest.fixture(autouse=True)
def _kept(figures: dict[str, Any]) -> Iterator[None]:
    """What was found is kept after every test, so that a run that ends early leaves what it has."""
    yield
    if REPORT in os.environ:
        Path(os.environ[REPORT]).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


class Stock:
    """Steps of transformers under torch.compile(reduce-overhead), each batch size in a process of its own.

    They compile side by side, and are timed one by one when asked.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._scratch = scratch
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        self._children = {
            batch: subprocess.Popen(
                [
                    sys.executable,
                    str(SCRIPTS / "stock.py"),
                    str(folder),
                    str(batch),
                    str(scratch / str(batch)),
                ],
                env=environment,
            )
            for batch in STOCK_BATCHES
        }

    def wait(self) -> None:
        """Returns once all of them have compiled: from then on they leave the device alone."""
        until = time.monotonic() + _LIMIT_S
        for batch, child in self._children.items():
            while not (self._scratch / f"{batch}.ready").exists():
                assert child.poll() is None, f"batch {batch} ended with {child.returncode}"
                assert time.monotonic() < until
                time.sleep(0.05)

    def measure(self, batch: int) -> dict[str, Any]:
        """Returns what one of them measured."""
        self.wait()
        (self._scratch / f"{batch}.go").touch()
        assert self._children[batch].wait(_LIMIT_S) == 0
        found: dict[str, Any] = json.loads((self._scratch / f"{batch}.json").read_text())
        return found

    def stop(self) -> None:
        """Ends what still runs."""
        for child in self._children.values():
            child.kill()
            child.wait()


@pytest.fixture(scope="session", autouse=True)
def stock(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """What users have today, compiled beside the first tests."""
    found = Stock(folder_of("llama-1b", folders), tmp_path_factory.mktemp("stock"))
    yield found
    found.stop()


@pytest.fixture(scope="session")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def load(folders: Path, cache_root: Path, stock: Stock) -> Load:
    """What loads a model of a shape, compiled or `eager` over the same weights, without graphs of its own.

    With `partition` it is compiled whole, and Inductor partitions it.
    """
    held: dict[tuple[str, bool, bool], Runner] = {}

    def loaded(shape: str, *, eager: bool = False, partition: bool = False) -> Runner:
        from graphkiln.core.start import load_built

        if (shape, False, partition) not in held:
            asked = deployment(folder_of(shape, folders))
            config = CompilationConfig(use_inductor_graph_partition=partition or None)
            held[shape, False, partition], _ = load_built(asked, config, cache_root=cache_root)
            served = held[shape, False, partition].served
            held[shape, True, partition] = Runner(served, served.backbone.forward, None, asked)
            stock.wait()
        return held[shape, eager, partition]

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
