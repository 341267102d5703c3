"""Whether, and which, AOT files a start looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.factors.env import read


@dataclass(frozen=True)
class AotUse:
    """`path` is a file to open instead of those of the cache; `force` makes every refusal fatal.

    `contained` puts the artifacts into the files that this start publishes. Raises ValueError for a
    demand that GRAPHKILN_USE_AOT_COMPILE=0 forbids.
    """

    enabled: bool = True
    force: bool = False
    path: Path | None = None
    contained: bool = False
    # How the demand that `force` is can be taken back.
    unforced: str = "leave --force-aot-load out"

    def __post_init__(self) -> None:
        named = {
            "force_aot_load": self.force,
            "an AOT file": self.path,
            "a self-contained AOT file": self.contained,
        }
        asked = next((name for name, is_asked in named.items() if is_asked), None)
        if asked is not None and not self.enabled:
            raise ValueError(f"{asked} was asked for and GRAPHKILN_USE_AOT_COMPILE=0 forbids it: unset it")

    @property
    def published(self) -> str | None:
        """The kind of AOT file that goes with a new entry."""
        if not self.enabled:
            return None
        return "contained" if self.contained else "entry"


def aot_use(*, force: bool = False, path: Path | str | None = None, contained: bool = False) -> AotUse:
    """Returns what was asked for, the variables of the environment included.

    Raises ValueError for a path that is empty, which would be the current folder.
    """
    if path == "":
        raise ValueError("aot must name a file and is empty")
    return AotUse(
        enabled=bool(read("GRAPHKILN_USE_AOT_COMPILE")),
        force=force or bool(read("GRAPHKILN_FORCE_AOT_LOAD")),
        path=None if path is None else Path(path),
        contained=contained,
        unforced=AotUse.unforced if force else "unset GRAPHKILN_FORCE_AOT_LOAD",
    )
