"""Files that a person gives: read up to a size, field by field, with one line for what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.core.errors import CompileError


@dataclass(frozen=True)
class Given:
    """What is said of one file: `where` names it, `problem` is raised, `remedy` says how to have a better."""

    where: str
    problem: type[CompileError]
    remedy: str

    def read(self, path: Path, most: int) -> dict[str, Any]:
        """Returns the JSON object of at most `most` bytes in a file. Raises the problem for anything else."""
        try:
            if path.exists() and not path.is_file():
                raise self.problem(self.where, "is not a regular file", "give the path of a file")
            with path.open("rb") as file:
                data = file.read(most + 1)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise self.problem(self.where, what, "give the path of a file") from error
        self.need(len(data) <= most, f"is larger than {most} bytes")
        try:
            return parse_object(data)
        except DocumentFault as fault:
            raise self.problem(self.where, f"is {fault.detail}", self.remedy) from fault

    def fields(self, part: str, content: Any, names: tuple[str, ...]) -> dict[str, Any]:
        """Returns an object that has just the fields called `names`; `part` is what it is called."""
        if not isinstance(content, Mapping):
            raise self.problem(self.where, f"{part} is not an object", self.remedy)
        for unknown in sorted(set(content) - set(names)):
            raise self.problem(self.where, f"{part} has an unknown field {short(unknown)}", self.remedy)
        for name in names:
            self.need(name in content, f"{part} has no field {name!r}")
        return dict(content)

    def need(self, holds: bool, what: str) -> None:
        """Raises the problem `what` unless something `holds`."""
        if not holds:
            raise self.problem(self.where, what, self.remedy)
