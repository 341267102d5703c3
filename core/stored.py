"""Compiled parts as they lie in a cache, from an entry or from its AOT file: what a load asks them for."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.store.aot import AotFile
from graphkiln.cache.store.aot_build import code_of
from graphkiln.cache.store.aot_header import BUFFERS, CODE_SECTION, DOOR, MODEL, WIRING
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import FileRecord
from graphkiln.cache.store.manifest import WIRING_FILE, artifact_records
from graphkiln.cache.store.reading import EntryFiles
from graphkiln.core.compile.tensors import unpack_tensors
from graphkiln.core.models.light import unpacked

RANK = "0_0"
# What is loaded by its path: libraries, and machine code for GPUs.
_MAPPED = (".so", ".cubin")


class Stored(Protocol):
    """Parts by prefix. Whatever is handed out was checked before; damage is `EntryDamaged`."""

    name: str

    @property
    def pieces(self) -> Mapping[str, Any]:
        """How many pieces there are: `total` and `distinct`."""

    def code(self) -> Mapping[str, Any]:
        """Returns the code factor: what each part's trace took for granted."""

    def wiring(self, prefix: str) -> Mapping[str, Any]:
        """Returns how to run a part, its door included."""

    def description(self, prefix: str) -> Mapping[str, Any] | None:
        """Returns what restores the model without building it, None where nothing does."""

    def buffers(self, prefix: str) -> Mapping[str, torch.Tensor]:
        """Returns the buffers that the model computes, by name."""

    def artifacts(self) -> Mapping[str, Mapping[str, FileRecord]]:
        """Returns the files of every artifact, by id and name."""

    def fetch(self, artifact: str, name: str) -> bytes | Path:
        """Returns a file's bytes; of a library, which has to be mapped by name, the path."""

    def release(self, mapped: Collection[Path]) -> None:
        """Lets go of what `fetch` holds open, but for the paths that may have been mapped."""


class EntryStored:
    """The parts of an entry."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.name = entry.path.name
        self._wirings: dict[str, Mapping[str, Any]] = {}

    @property
    def pieces(self) -> Mapping[str, Any]:
        pieces: Mapping[str, Any] = self.entry.header["pieces"]
        return pieces

    @cached_property
    def _code(self) -> Mapping[str, Any]:
        code: Mapping[str, Any] = self.entry.factors().as_json()["code"]
        return code

    def code(self) -> Mapping[str, Any]:
        return self._code

    def wiring(self, prefix: str) -> Mapping[str, Any]:
        if prefix not in self._wirings:
            self._wirings[prefix] = self.entry.read_json(RANK, prefix, WIRING_FILE)
        return self._wirings[prefix]

    def description(self, prefix: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.wiring(prefix).get("model")
        return found

    def buffers(self, prefix: str) -> Mapping[str, torch.Tensor]:
        rows = (self.description(prefix) or {}).get("buffers", {})
        return {name: unpacked(row) for name, row in rows.items()}

    def artifacts(self) -> Mapping[str, Mapping[str, FileRecord]]:
        manifest = self.entry.manifest(RANK)
        return {artifact: artifact_records(manifest.files, artifact) for artifact in manifest.artifacts}

    def fetch(self, artifact: str, name: str) -> bytes | Path:
        path = f"artifacts/{artifact}/{name}"
        record = self.entry.manifest(RANK).files.get(path)
        if record is None:
            raise EntryDamaged(self.name, path, "missing", "the manifest does not list it")
        return _fetched(self.entry.files, path, record)

    def release(self, mapped: Collection[Path]) -> None:
        """Does nothing: what was fetched lies in the entry, and none of it is open."""


class AotStored:
    """The parts of an AOT file; artifacts that it does not hold itself come from the entry in `files`."""

    def __init__(self, file: AotFile, files: EntryFiles | None) -> None:
        self.file = file
        self.name = f"{file.header.short} (AOT file)"
        self._files = files
        self._mapped: dict[str, Path] = {}

    @property
    def pieces(self) -> Mapping[str, Any]:
        pieces: Mapping[str, Any] = self.file.header.body["pieces"]
        return pieces

    @cached_property
    def _code(self) -> Mapping[str, Any]:
        code = self.file.json(CODE_SECTION)
        if set(code) != set(self.file.header.parts):
            raise self.file.damaged(CODE_SECTION, "its parts are not those of the header")
        return code

    def code(self) -> Mapping[str, Any]:
        return self._code

    @cached_property
    def _wirings(self) -> Mapping[str, Mapping[str, Any]]:
        found = {}
        for prefix, artifacts in self.file.header.parts.items():
            name = f"{prefix}/{WIRING}"
            wiring = self.file.json(name)
            try:
                used = [piece["artifact"] for piece in wiring["pieces"]]
                used += [wiring["attention"]["artifact"]] if "attention" in wiring else []
                judged = code_of(self.code()[prefix], wiring["sources"])
            except (KeyError, TypeError, AttributeError):
                raise self.file.damaged(name, "not the wiring of a part") from None
            if set(used) != set(artifacts):
                raise self.file.damaged(name, "its pieces are not the artifacts of the header")
            # The header was judged by these functions: it must not have named others.
            for module, record in judged.items():
                known = self.file.header.body["code"].get(module)
                if known is None or not _within(record, known):
                    raise self.file.damaged("header", f"its code of {module} is not that of {prefix}")
            found[prefix] = {**wiring, "door": self.file.json(f"{prefix}/{DOOR}")}
        return found

    def wiring(self, prefix: str) -> Mapping[str, Any]:
        return self._wirings[prefix]

    def description(self, prefix: str) -> Mapping[str, Any] | None:
        if prefix not in self.file.header.parts:
            return None
        found = self.file.json(f"{prefix}/{MODEL}").get("model")
        if found is not None and not isinstance(found, dict):
            raise self.file.damaged(f"{prefix}/{MODEL}", "not the description of a model")
        return found

    def buffers(self, prefix: str) -> Mapping[str, torch.Tensor]:
        name = f"{prefix}/{BUFFERS}"
        if name not in self.file.header.sections:
            return {}
        data = self.file.section(name)
        try:
            return unpack_tensors(data)
        except Exception as error:
            # safetensors raises an exception type of its own, and torch others.
            raise self.file.damaged(name, f"not tensors: {' '.join(str(error).split())[:120]}") from None

    def artifacts(self) -> Mapping[str, Mapping[str, FileRecord]]:
        return self.file.header.artifacts

    def fetch(self, artifact: str, name: str) -> bytes | Path:
        path = f"artifacts/{artifact}/{name}"
        record = self.file.header.artifacts.get(artifact, {}).get(name)
        if record is None:
            raise self.file.damaged("header", f"it does not list {path}")
        if self.file.header.contained:
            data = self.file.section(path)
            return self._in_memory(record.sha256, data) if name.endswith(_MAPPED) else data
        if self._files is None:
            raise EntryDamaged(self.name, path, "missing", "its entry is not here and the file holds none")
        return _fetched(self._files, path, record)

    def release(self, mapped: Collection[Path]) -> None:
        for sha256, path in list(self._mapped.items()):
            if path not in mapped:
                os.close(int(path.name))
                del self._mapped[sha256]

    def _in_memory(self, sha256: str, data: bytes) -> Path:
        """Returns a path of a library that lies in memory: nothing is written to any disk for it.

        Once mapped it is never closed, for its number is its name, under which it stays mapped.
        """
        if sha256 not in self._mapped:
            descriptor = os.memfd_create(f"graphkiln-{sha256[:10]}")
            with open(descriptor, "wb", closefd=False) as stream:
                stream.write(data)
            self._mapped[sha256] = Path(f"/proc/self/fd/{descriptor}")
        return self._mapped[sha256]


def _fetched(files: EntryFiles, path: str, record: FileRecord) -> bytes | Path:
    if not path.endswith(_MAPPED):
        return files.checked(path, record)
    files.measured(path, record)
    return files.folder / path


def _within(record: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    return bool(
        record["file_sha256"] == known["file_sha256"]
        and record["functions"].items() <= known["functions"].items()
    )
