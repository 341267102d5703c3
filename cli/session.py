"""What holds for the whole run of one command: the global options, and where data and talk go."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.cli.show.stdout import write_out
from graphkiln.cli.show.terminal import Style, style_of

SCHEMA = 1
STARTED = time.perf_counter()


@dataclass(frozen=True)
class Session:
    """The global options. `verbosity` is the number of -v; `quiet` means no progress and no talk."""

    cache_root: Path | None = None
    verbosity: int = 0
    quiet: bool = False

    @property
    def style(self) -> Style:
        """What stdout can show."""
        return style_of(sys.stdout)

    def seconds(self) -> float:
        """Returns the seconds since this process began to read the command line."""
        return time.perf_counter() - STARTED

    def data(self, lines: Iterable[str]) -> None:
        """Writes what was asked for to stdout."""
        write_out("".join(line.rstrip() + "\n" for line in lines))

    def json(self, command: str, facts: Mapping[str, Any]) -> None:
        """Writes the one object that a --json command prints."""
        self.data([json_text(command, facts)])

    def talk(self, text: str) -> None:
        """Writes a line beside the data, to stderr, unless --quiet."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


def json_text(command: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"schema": SCHEMA, "command": command, **facts}, indent=2, default=str)
