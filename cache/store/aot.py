"""The AOT file of one rank: everything that a start reads, in one file that is judged by its head alone.

    {first line and header: aot_header}{section}{section}...

Sections hold plain data: JSON, tensors in safetensors form, and in a self-contained file the files of
the artifacts.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.factors.canonical import canonical_json
from graphkiln.cache.store.aot_header import AOT_FORMAT, read_header
from graphkiln.cache.store.documents import DocumentFault, need, parse_object


class AotFile:
    """One AOT file, open: the header was read and judged, a section is read when it is asked for.

    `name` says in errors what is damaged. Any damage is `EntryDamaged`. Sections may be read by
    several threads.
    """

    def __init__(self, stream: BinaryIO, size: int, name: str) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._entry = name
        with _faults(name, "header"):
            self.header = read_header(stream, size)

    def section(self, name: str) -> bytes:
        """Return the bytes of a section after its digest agreed."""
        record = self.header.sections.get(name)
        with _faults(self._entry, name):
            need(record is not None, "the header does not list it")
            assert record is not None
            with self._lock:
                self._stream.seek(self.header.offsets[name])
                data = b"".join(_chunks(self._stream, record.size))
            if len(data) != record.size:
                raise DocumentFault("size", f"{len(data)} bytes instead of {record.size}")
            if hashlib.sha256(data).hexdigest() != record.sha256:
                raise DocumentFault("digest", "its bytes are not those that were written")
            return data

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON section, parsed after its digest agreed."""
        data = self.section(name)
        with _faults(self._entry, name):
            return parse_object(data)

    def damaged(self, section: str, detail: str) -> EntryDamaged:
        """Return the error for a section whose bytes are right and whose content makes no sense."""
        return EntryDamaged(self._entry, f"AOT file: {section}", "schema", detail)

    def faults(self) -> Iterator[EntryDamaged]:
        """Yield what is wrong with each section."""
        for name in self.header.sections:
            try:
                self.json(name) if name.endswith(".json") else self.section(name)
            except EntryDamaged as damage:
                yield damage

    def __del__(self) -> None:
        # Pieces that are loaded late read from it as long as they are there.
        self._stream.close()

    def close(self) -> None:
        """Close the file; sections cannot be read any more."""
        self._stream.close()


class _faults:
    """Turns what is wrong with one section into `EntryDamaged`."""

    def __init__(self, entry: str, section: str) -> None:
        self._entry, self._section = entry, section

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, DocumentFault):
            fault, detail = error.fault, error.detail
        elif isinstance(error, OSError):
            fault, detail = "unreadable", (error.strerror or str(error)).lower()
        else:
            return
        raise EntryDamaged(self._entry, f"AOT file: {self._section}", fault, detail) from None


def _chunks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield up to `size` bytes: one read of an unbuffered file ends short of 2 GiB."""
    while size > 0 and (data := stream.read(size)):
        yield data
        size -= len(data)


def pack(body: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """Return an AOT file: `body` with the list of its sections added, and the sections."""
    listed = [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sections.items()
    ]
    header = canonical_json({**body, "aot_format": AOT_FORMAT, "sections": listed}, "AOT header")
    sha256 = hashlib.sha256(header).hexdigest()
    line = f"graphkiln-aot {AOT_FORMAT:04d} {body['lookup']} {len(header):010d} {sha256}\n"
    return b"".join((line.encode("ascii"), header, *sections.values()))
