"""One entry as it lies on disk: read only, nothing parsed or handed out before its digest agreed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from graphkiln.cache.errors import EntryDamaged, NotCanonical
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.key import SHORT_DIGITS, Factors
from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.cache.store.files import FileRecord, tree_bytes
from graphkiln.cache.store.manifest import (
    FACTORS_FILE,
    HEADER_FILE,
    MANIFEST_FILE,
    RANK,
    SHA256,
    Manifest,
    artifact_id,
    check_header,
    rank_folder,
    read_manifest,
)
from graphkiln.cache.store.reading import EntryFiles, Fault
from graphkiln.cache.store.state import State, read_state
from graphkiln.cache.store.verify import verify_rank, verify_rest, verify_shared

# The name of an entry in a cache: the first digits of its key. A copy elsewhere may have any other name.
SHORT = re.compile(rf"[0-9a-f]{{{SHORT_DIGITS}}}")


class Entry:
    """An entry whose header is sound; everything else is checked when it is asked for.

    Any damage is `EntryDamaged`, naming the file and the fault. What one object has checked it does
    not check again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = EntryFiles(path)
        # `identity` tells this entry from another one that took its place under the same name.
        body, self.identity = self.files.header(HEADER_FILE)
        with self.files.reading(HEADER_FILE):
            self.header: Mapping[str, Any] = MappingProxyType(check_header(body))
        if SHORT.fullmatch(path.name) and path.name != self.short:
            raise EntryDamaged(path.name, HEADER_FILE, "schema", f"its key begins {self.short}")
        self._manifests: dict[str, Manifest] = {}
        self._sound_artifacts: set[str] = set()

    def __repr__(self) -> str:
        return f"Entry({str(self.path)!r})"

    @property
    def key(self) -> str:
        return str(self.header["key"])

    @property
    def short(self) -> str:
        return self.key[:SHORT_DIGITS]

    @property
    def lookup(self) -> str:
        return str(self.header["lookup"])

    @property
    def created(self) -> str:
        """UTC time of publication, a text that sorts by time."""
        return str(self.header["created"])

    @property
    def aot(self) -> str | None:
        """Which kind of AOT file was published with it: `entry`, `contained`, or None for none."""
        kind = self.header.get("aot")
        return None if kind is None else str(kind)

    @property
    def ranks_expected(self) -> tuple[str, ...]:
        return tuple(self.header["ranks_expected"])

    def ranks(self) -> tuple[str, ...]:
        """Return the ranks that have a folder here, sound or not."""
        found = (name.removeprefix("rank_") for name in self.files.names() if name.startswith("rank_"))
        return tuple(rank for rank in found if RANK.fullmatch(rank))

    @property
    def complete(self) -> bool:
        """Whether every rank that the entry is for has its folder."""
        return set(self.ranks_expected) <= set(self.ranks())

    @property
    def build_digest(self) -> str | None:
        """Digest of what the compiler chose for all expected ranks, None while a rank is missing."""
        if not self.complete:
            return None
        return digest({rank: self.manifest(rank).build_digest for rank in self.ranks_expected})

    @cached_property
    def total_bytes(self) -> int:
        """Size of all files of the entry; links are counted as links."""
        return tree_bytes(self.path)

    @property
    def state(self) -> State:
        """Label, pin and last use: not part of any digest, never to be relied on."""
        return read_state(self.path)

    def factors(self) -> Factors:
        """Return the four factors with all their values, checked against the header."""
        record = self.header["factors"]
        data = self.files.checked(FACTORS_FILE, FileRecord(record["size"], record["sha256"]))
        with self.files.reading(FACTORS_FILE):
            try:
                factors = Factors.from_json(parse_object(data))
            except (ValueError, NotCanonical) as error:
                raise DocumentFault("schema", str(error)) from None
            if factors.hashes != self.header["hashes"]:
                raise DocumentFault("schema", "the values do not give the hashes of the header")
        return factors

    def manifest(self, rank: str) -> Manifest:
        """Return the manifest of a rank, its own digest and schema checked."""
        name = f"{rank_folder(rank)}/{MANIFEST_FILE}"
        if rank not in self._manifests:
            body = self.files.document(name)
            with self.files.reading(name):
                self._manifests[rank] = read_manifest(body, rank, self.key)
        return self._manifests[rank]

    def read_bytes(self, rank: str, prefix: str, name: str) -> bytes:
        """Return a file of one part of a rank, its size and digest checked."""
        path = f"{rank_folder(rank)}/{prefix}/{name}"
        record = self.manifest(rank).files.get(path)
        if record is None:
            raise EntryDamaged(self.path.name, path, "missing", "the manifest does not list it")
        return self.files.checked(path, record)

    def read_json(self, rank: str, prefix: str, name: str) -> dict[str, Any]:
        """Return a JSON file of one part of a rank, its size and digest checked before it is parsed."""
        data = self.read_bytes(rank, prefix, name)
        with self.files.reading(f"{rank_folder(rank)}/{prefix}/{name}"):
            return parse_object(data)

    def source_text(self, sha256: str) -> str:
        """Return the text of a traced source file by its digest."""
        size = self.header["sources"].get(sha256)
        if size is None:
            raise EntryDamaged(
                self.path.name, f"source/{sha256}.py", "missing", "the header does not list it"
            )
        data = self.files.checked(f"source/{sha256}.py", FileRecord(size, sha256))
        return data.decode("utf-8", "surrogatepass")

    def artifact_dir(self, artifact: str) -> Path:
        """Return the folder of an artifact after its files gave the digest that is its id.

        Every file in it is read whole. Nothing else in the entry needs to be sound for this.
        """
        if SHA256.fullmatch(artifact) is None:
            raise ValueError(f"not an artifact id: {artifact!r}")
        folder = f"artifacts/{artifact}"
        if artifact not in self._sound_artifacts:
            records = self.files.records(folder)
            with self.files.reading(folder):
                if not records:
                    raise DocumentFault("missing", "the artifact has no files")
                if artifact_id(records) != artifact:
                    raise DocumentFault("digest", "its files are not those that were written")
            self._sound_artifacts.add(artifact)
        return self.path / folder

    def verify_shared(self) -> list[Fault]:
        """Return what is wrong with what all ranks share: the factors and the source files."""
        return verify_shared(self)

    def verify(self, rank: str | None = None) -> list[Fault]:
        """Return what is wrong with one rank and what it shares; without `rank`, with the whole entry.

        Reads everything anew, whatever this object has read before.
        """
        try:
            fresh = Entry(self.path)
            if rank is not None:
                return verify_shared(fresh) + verify_rank(fresh, rank)
            faults = [fault for found in fresh.ranks() for fault in verify_rank(fresh, found)]
            return verify_shared(fresh) + faults + verify_rest(fresh)
        except EntryDamaged as damage:
            return [Fault.of(damage)]
