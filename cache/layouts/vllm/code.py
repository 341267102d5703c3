"""vLLM's code hash from the texts inside a `model`: of every traced file its absolute path and its text."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from graphkiln.cache.layouts.spans import Span

_MOST_AMBIGUOUS = 5


@dataclass(frozen=True)
class Code:
    """What was traced: the file of the traced function, and the text of every file by its module's name."""

    file: str
    texts: Mapping[str, str | Span]

    def hashes(self, known_files: Collection[str] = ()) -> Iterator[str]:
        """Yield what the code hash can be: a module may be `x.py` or `x/__init__.py`, which is not stored.

        The likely one comes first; `known_files` are paths of which it is known. Files count by their
        absolute paths, whose prefix the traced function gives.
        """
        prefix, modules = self._prefix, sorted(self.texts)
        if not prefix or not modules:
            return
        parents = {name[:at] for name in modules for at, letter in enumerate(name) if letter == "."}
        packages = {
            module
            for module in modules
            if module in parents or f"{prefix}/{module.replace('.', '/')}/__init__.py" in known_files
        }
        # One whose submodules were not traced looks like a module; it lies near the top.
        loose = sorted(set(modules) - packages, key=lambda module: (module.count("."), module))
        for extra in itertools.islice(_subsets(loose[:_MOST_AMBIGUOUS]), 1 << _MOST_AMBIGUOUS):
            yield self._hash(prefix, packages | set(extra))

    @property
    def _prefix(self) -> str:
        """The folder of installed packages: where the top package of a traced module lies."""
        parts = self.file.split("/")
        tops = {module.partition(".")[0] for module in self.texts}
        own = next((at for at in range(len(parts) - 1, 0, -1) if parts[at] in tops), 0)
        return "/".join(parts[:own])

    def _hash(self, prefix: str, packages: set[str]) -> str:
        files = sorted(
            (f"{prefix}/{module.replace('.', '/')}" + ("/__init__.py" if module in packages else ".py"), text)
            for module, text in self.texts.items()
        )
        digest = hashlib.sha256()
        for number, (path, text) in enumerate(files):
            digest.update(f"{chr(10) if number else ''}{path}\n".encode())
            digest.update(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text.read())
        return digest.hexdigest()


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)
