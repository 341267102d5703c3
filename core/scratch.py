"""Folders for what compilers write on the way."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
