"""What is installed of torch and of the assembler, as far as keys and descriptions tell it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from graphkiln.core.trace.functions import TORCH_PARTS

# The one file in which two builds of a version differ; which of them it is, the version itself says.
_OF_BUILD = "version.py"
_MOST_THREADS = 4
# The assemblers that come with Triton, and the variables that put another in their place.
ASSEMBLERS = {"ptxas": "TRITON_PTXAS_PATH", "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}


def torch_sources(root: Path = Path(torch.__file__).parent) -> str:
    """Returns one digest of the parts of torch that make code: their Python text, the commit of the rest.

    The CPU and the CUDA build of one version have the same.
    """
    parts = [f"{part}/" for part in TORCH_PARTS if (root / part).is_dir()]
    files = [
        *(file for file in _sources(str(root), "", below=False) if file != _OF_BUILD),
        *(file for part in parts for file in _sources(str(root), part)),
    ]
    files.sort(key=lambda file: file.split("/"))
    # Every start reads this thousand of files; reading and digesting let other threads run.
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "graphkiln-sources") as pool:
        shares = [*pool.map(lambda first: _digests(root, files[first::threads]), range(threads))]
    total = hashlib.sha256(str(torch.version.git_version).encode())
    for at, file in enumerate(files):
        total.update(file.encode())
        total.update(shares[at % threads][at // threads])
    return total.hexdigest()


def _sources(root: str, folder: str, *, below: bool = True) -> Iterator[str]:
    """Yields the Python files of a folder, `""` or one that ends in a slash, by their names from `root`."""
    with os.scandir(f"{root}/{folder}") as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if below:
                    yield from _sources(root, f"{folder}{entry.name}/")
            elif entry.name.endswith(".py"):
                yield folder + entry.name


def _digests(root: Path, files: list[str]) -> list[bytes]:
    found = []
    for file in files:
        with open(f"{root}/{file}", "rb", buffering=0) as opened:
            found.append(hashlib.sha256(opened.read()).digest())
    return found


def build_for(wanted: str) -> str:
    """Returns the version of torch here; of a CPU build by the name of the build that it stands for."""
    here = str(torch.__version__)
    stands = not torch.backends.cuda.is_built() and here.partition("+")[0] == wanted.partition("+")[0]
    return wanted if stands else here


def own_ptxas(name: str = "ptxas") -> Path | None:
    """Returns an assembler that came with Triton: the same file wherever that Triton is installed."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "backends" / "nvidia" / "bin" / name


def ptxas_text() -> str | None:
    """Returns what that assembler says of its version, as one line; None where there is none that answers."""
    lines = (line.strip() for line in _answer("ptxas", "--version").splitlines())
    return ", ".join(line for line in lines if line.startswith(("Cuda", "Build "))) or None


def assembled_for(capability: int) -> tuple[str, frozenset[str]]:
    """Returns what code for a capability (90 for 9.0) is assembled for, and all that its assembler takes.

    These are none where the assembler does not answer. As Triton has it: the later assembler from 10.0 on,
    and from 9.0 on what no later device runs.
    """
    name = "ptxas-blackwell" if capability >= 100 else "ptxas"
    known = frozenset(re.findall(r"'(sm_\d+[a-z]?)'", _answer(name, "--help")))
    return f"sm_{capability}{'a' if capability >= 90 else ''}", known


def _answer(assembler: str, option: str) -> str:
    program = own_ptxas(assembler)
    if program is None:
        return ""
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
