"""The files of artifacts, read and digested by several threads while the start goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.errors import EntryDamaged
from graphkiln.core.stored import Stored

_MOST_THREADS = 4
# Kept beside what was built of it, to be read by people.
_NOT_RUN = re.compile(r"kernels/.*\.(cpp|py)")


class Fetch:
    """Every file that running the artifacts takes: asked for at once, waited for when it is used."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._handed_out: set[Path] = set()
        pool = self._pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "graphkiln-fetch")
        self._files: dict[str, dict[str, Future[bytes | Path]]] = {
            artifact: {
                name: pool.submit(stored.fetch, artifact, name)
                for name in records
                if not _NOT_RUN.fullmatch(name)
            }
            for artifact, records in stored.artifacts().items()
        }
        pool.shutdown(wait=False)

    def broken(self) -> dict[str, EntryDamaged]:
        """Returns what is wrong with each artifact that is not sound; waits for all of them."""
        found: dict[str, EntryDamaged] = {}
        for artifact, files in self._files.items():
            for future in files.values():
                error = future.exception()
                if isinstance(error, EntryDamaged):
                    found.setdefault(artifact, error)
                elif error is not None:
                    raise error
        return found

    def artifact(self, artifact: str) -> FetchedArtifact:
        """Returns one artifact, handed out file by file. Raises EntryDamaged where there is none."""
        if artifact not in self._files:
            raise EntryDamaged(self._stored.name, f"artifacts/{artifact}", "missing", "nothing lists it")
        return FetchedArtifact(self._stored.name, artifact, self._files[artifact], self._handed_out)

    def close(self) -> None:
        """Lets go of what was read and never handed out to be mapped; nothing can be asked for any more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._stored.release(self._handed_out)


@dataclass(frozen=True)
class FetchedArtifact:
    """An artifact whose files are handed out after their digests agreed."""

    entry: str
    artifact: str
    files: Mapping[str, Future[bytes | Path]]
    handed_out: set[Path]

    def read(self, name: str) -> bytes:
        """Returns a file's bytes. ValueError for one that is to be mapped."""
        found = self._wait(name)
        if isinstance(found, Path):
            raise ValueError(f"{name} is mapped by its path: what lies there now nobody has checked")
        return found

    def path(self, name: str) -> Path:
        """Returns a library's path, to be mapped."""
        found = self._wait(name)
        assert isinstance(found, Path)
        self.handed_out.add(found)
        return found

    def _wait(self, name: str) -> bytes | Path:
        if name not in self.files:
            raise EntryDamaged(self.entry, f"artifacts/{self.artifact}/{name}", "missing", "nothing lists it")
        return self.files[name].result()
