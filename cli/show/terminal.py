"""What the stream can show: its width and whether it has colour."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class Style:
    """`width` is the number of columns to stay within, or None for no limit; `color` allows escape codes."""

    width: int | None = None
    color: bool = False

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.color else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.color else text


def style_of(stream: IO[str]) -> Style:
    """Returns what `stream` can show; COLUMNS sets the width of a pipe too, which has none of its own."""
    drawable = is_terminal(stream)
    limited = drawable or os.environ.get("COLUMNS", "").isdecimal()
    width = shutil.get_terminal_size().columns if limited else None
    return Style(width, drawable and not os.environ.get("NO_COLOR"))


def is_terminal(stream: IO[str]) -> bool:
    """True when `stream` is a terminal that can be drawn on."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Returns `text` with control characters spelled out: a stored text must not drive the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
