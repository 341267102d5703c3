"""Exits 4 with one line when this machine lacks what the scripts need beside Python, or has it in the way."""

import os
import shlex
import subprocess
import sys
import sysconfig
from importlib.util import find_spec


def main() -> str | None:
    """Returns what is missing, or in the way, as one line; None where all is there."""
    if len(os.getcwd().split()) > 1:
        # torch hands the paths of its headers to the compiler without quotes
        return f"graphkiln needs a checkout without spaces in its path, and this is '{os.getcwd()}'; move it"
    if find_spec("ensurepip") is None:
        return f"graphkiln needs the venv module of {sys.executable}; install it (Debian: python3-venv)"
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if not compiles(compiler, "int main() { return 0; }"):
        return (
            f"graphkiln needs a C++ compiler for CPU targets, and '{compiler}' does not work; "
            "install g++ or set CXX to one that does"
        )
    if not compiles(compiler, "#include <Python.h>"):
        return f"graphkiln needs the C headers of {sys.executable}; install them (Debian: python3-dev)"
    return None


def compiles(compiler: str, source: str) -> bool:
    """True when `compiler` accepts `source`, with this Python's headers on its path."""
    flags = ["-I" + sysconfig.get_paths()["include"], "-x", "c++", "-fsyntax-only", "-"]
    try:
        done = subprocess.run(
            shlex.split(compiler) + flags,
            input=source.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    problem = main()
    if problem:
        print(problem, file=sys.stderr)
        sys.exit(4)
