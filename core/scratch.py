"""Folders for what compilers write on the way, and the variables by which they are told of them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

# Where Inductor keeps its files.
CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@:=,~-]+")


@contextlib.contextmanager
def compiler_folder(inside: Path | None = None) -> Iterator[Path]:
    """Gives a folder that compilers can take: `inside`, or one of its own that is removed afterwards.

    torch splits its command lines at spaces and quotes, so a path with one of them will not do.
    """
    if inside is not None and _PLAIN_PATH.fullmatch(str(inside)):
        yield inside
        return
    with tempfile.TemporaryDirectory(prefix="graphkiln-") as other:
        yield Path(other)


@contextlib.contextmanager
def variables(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Sets environment variables, or takes them away for None, and puts back what they were."""
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(wanted: Mapping[str, str | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
