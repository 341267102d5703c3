"""What stands before the C++ compiler while tests run: kernels find their header parsed already.

    gxx.py COMPILER FOLDER ARGUMENTS...

All kernels of Inductor begin with one header, and g++ parses it for two thirds of a kernel's compile.
For options that come a second time it is precompiled into FOLDER, which the kernels after that find
before the header itself. g++ takes it only where it gives the same code; everything else is passed on.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HEADER = "torch/csrc/inductor/cpp_prefix.h"


def main() -> None:
    compiler, shared, *arguments = sys.argv[1:]
    if len(arguments) > 2 and arguments[0].endswith(".cpp") and "-o" in arguments:
        options = arguments[1 : arguments.index("-o")]
        folder = Path(shared, hashlib.sha256("\0".join(options).encode()).hexdigest()[:16])
        if not first(folder) and first(folder / "making"):
            precompile(compiler, options, folder)
        arguments = [f"-I{folder}", *arguments]
    os.execv(compiler, [compiler, *arguments])


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
