"""What stands before the C++ compiler while tests run: equal kernels are compiled once a run.

    gxx.py COMPILER FOLDER ARGUMENTS...

What a source became with the same options before lies in FOLDER, and is copied. All kernels of Inductor
begin with one header, and g++ parses it for two thirds of a kernel's compile: for options that come a
second time it is precompiled into FOLDER, which the kernels after that find before the header itself.
g++ takes it only where it gives the same code. Everything else is passed on.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HEADER = "torch/csrc/inductor/cpp_prefix.h"


def main() -> None:
    compiler, shared, *arguments = sys.argv[1:]
    if len(arguments) <= 2 or not arguments[0].endswith(".cpp") or "-o" not in arguments:
        os.execv(compiler, [compiler, *arguments])
    at = arguments.index("-o")
    source, options, target = Path(arguments[0]), arguments[1:at], Path(arguments[at + 1])
    folder = Path(shared, digest("\0".join(options).encode()))
    known = folder / digest(source.read_bytes() + "\0".join(arguments[at + 2 :]).encode())
    if known.exists() and copied(known, target):
        return
    if not first(folder) and first(folder / "making"):
        precompile(compiler, options, folder)
    done = subprocess.run([compiler, f"-I{folder}", *arguments], check=False)
    if done.returncode == 0:
        draft = known.with_suffix(f".{os.getpid()}")
        if copied(target, draft):
            draft.rename(known)
    sys.exit(done.returncode)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def copied(one: Path, other: Path) -> bool:
    """Copies a file and its mode, and says whether that was possible."""
    try:
        shutil.copy(one, other)
    except OSError:
        return False
    return True


def first(folder: Path) -> bool:
    """Makes a folder, and says whether it is this process that made it."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def precompile(compiler: str, options: list[str], folder: Path) -> None:
    places = (Path(option[2:], HEADER) for option in options if option.startswith("-I"))
    header = next((path for path in places if path.is_file()), None)
    if header is not None:
        made, place = folder / "making" / "header.gch", folder / f"{HEADER}.gch"
        command = [compiler, "-x", "c++-header", *options, str(header), "-o", str(made)]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            place.parent.mkdir(parents=True)
            made.rename(place)


main()
