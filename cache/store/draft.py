"""An entry in the making: private until it is published whole, gone if it is not."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from graphkiln.cache.errors import FactorsChanged
from graphkiln.cache.factors.canonical import canonical_json, digest
from graphkiln.cache.factors.env import read
from graphkiln.cache.factors.key import FORMAT, Factors
from graphkiln.cache.store.documents import seal
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import FileRecord, copy_new, flush_tree, relative_parts, write_new
from graphkiln.cache.store.halves import stage_aot
from graphkiln.cache.store.manifest import (
    AOT_KINDS,
    FACTORS_FILE,
    GRAPH_FILE,
    HEADER_FILE,
    MANIFEST_FILE,
    PREFIX,
    RESERVED,
    SCHEMA,
    SHA256,
    WIRING_FILE,
    artifact_id,
    rank_folder,
    records_json,
)
from graphkiln.cache.store.oserrors import typed_os_errors
from graphkiln.cache.store.publish import publish_folder
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.sweep import own_folder, remove_dead_drafts, remove_tree, staging_name
from graphkiln.cache.store.trash import empty_trash

_MAX_NAME_BYTES = 255


class Draft:
    """The entry that will have the key `key`: `path` is its folder, `scratch` one for compilers.

    A context manager; leaving it removes whatever was not published. A disk that fills up raises
    `DiskFull` from any method.
    """

    def __init__(self, root: CacheRoot, key: str) -> None:
        if SHA256.fullmatch(key) is None:
            raise ValueError(f"not a key: {key!r}")
        self.key = key
        self._root = root
        self._place = root.staging / staging_name(key)
        self.path = self._place / "entry"
        self.scratch = self._place / "scratch"
        self._incoming = self._place / "incoming"
        self._artifacts: dict[str, dict[str, FileRecord]] = {}
        self._sources: dict[str, int] = {}
        self._parts: dict[str, dict[str, tuple[str, ...]]] = {}
        self._files: dict[str, dict[str, FileRecord]] = {}
        self._ranks: dict[str, dict[str, Any]] = {}
        self._published = False
        self._exit = ExitStack()

    def __enter__(self) -> Draft:
        grace_s = read("GRAPHKILN_TRASH_GRACE")
        self._root.ensure()
        with ExitStack() as undo, typed_os_errors(self._root.path):
            undo.enter_context(own_folder(self._root, self._place.name))
            for folder in (self.path, self.path / "artifacts", self.scratch, self._incoming):
                os.mkdir(folder, 0o700)
            self._exit = undo.pop_all()
        remove_dead_drafts(self._root)
        empty_trash(self._root, grace_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def add_artifact(self, files: Mapping[str, bytes | Path]) -> str:
        """Store the files of one compiled piece, by relative name; return the artifact's id.

        The id is the digest of names, sizes and digests: equal files give one artifact, stored once.
        """
        if not files:
            raise ValueError("an artifact has at least one file")
        folder = self._incoming / secrets.token_hex(8)
        records: dict[str, FileRecord] = {}
        for name, content in files.items():
            target = folder.joinpath(*_file_parts(name))
            with _stream(content) as stream, self._writing():
                os.makedirs(target.parent, mode=0o700, exist_ok=True)
                records[name] = copy_new(stream, target)
        artifact = artifact_id(records)
        with self._writing():
            if artifact in self._artifacts:
                shutil.rmtree(folder)
            else:
                os.rename(folder, self.path / "artifacts" / artifact)
                self._artifacts[artifact] = records
        return artifact

    def add_source(self, text: str) -> str:
        """Store the text of a source file; return its SHA-256."""
        data = text.encode("utf-8", "surrogatepass")
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 not in self._sources:
            self._write(f"source/{sha256}.py", data)
            self._sources[sha256] = len(data)
        return sha256

    def add_part(
        self, rank: str, prefix: str, graph_py: str, wiring: Mapping[str, Any], artifacts: Sequence[str]
    ) -> None:
        """Store one part of a rank: its readable graph, how to run it, and the artifacts that it uses."""
        if PREFIX.fullmatch(prefix) is None:
            raise ValueError(f"not a prefix: {prefix!r}")
        unknown = [artifact for artifact in artifacts if artifact not in self._artifacts]
        if unknown:
            raise ValueError(f"not artifacts of this draft: {', '.join(unknown)}")
        folder = f"{rank_folder(rank)}/{prefix}"
        files = self._files.setdefault(rank, {})
        for name, data in (
            (GRAPH_FILE, graph_py.encode("utf-8", "surrogatepass")),
            (WIRING_FILE, canonical_json(wiring, "wiring")),
        ):
            files[f"{folder}/{name}"] = self._write(f"{folder}/{name}", data)
        self._parts.setdefault(rank, {})[prefix] = tuple(artifacts)

    def set_rank(self, rank: str, specific: Mapping[str, Any], build: Mapping[str, Any]) -> None:
        """Note what is special to a rank, and what the compiler chose, whose digest is the build digest."""
        rank_folder(rank)
        # A copy at this moment, so that the digest and the values can never part.
        own = json.loads(canonical_json({"specific": specific, "build": build}))
        self._ranks[rank] = {**own, "build_digest": digest(own["build"])}

    def publish(
        self,
        header: Mapping[str, Any],
        factors: Factors,
        aot: str | None = None,
        *,
        make_room: Callable[[], None] | None = None,
    ) -> Entry:
        """Finish the entry and put it in place by one rename; return the entry that is there then.

        `factors` are read again at this moment: `FactorsChanged` when they no longer give the key.
        `header` is added to what `entry.json` holds anyway; `ranks_expected` in it, or else the
        ranks of this draft, say when the entry is complete. `aot` is the kind of AOT file that goes with
        it, if any. `make_room` is called when nothing but the rename is left to do.
        """
        if factors.key != self.key:
            raise FactorsChanged(self.key, factors.key)
        taken = sorted(RESERVED & set(header))
        if aot not in (None, *AOT_KINDS):
            raise ValueError(f"not a kind of AOT file: {aot!r}")
        if taken:
            raise ValueError(f"the header's {', '.join(taken)} cannot be given")
        if not self._ranks or set(self._ranks) != set(self._parts):
            raise ValueError("every rank of an entry has parts and was set")
        if self._published:
            raise ValueError("a draft is published once")
        self._published = True
        remove_tree(self.scratch)
        record = self._write(FACTORS_FILE, canonical_json(factors.as_json()))
        for rank in self._ranks:
            self._write(f"{rank_folder(rank)}/{MANIFEST_FILE}", seal(self._manifest(rank), f"rank {rank}"))
        body = {
            "ranks_expected": sorted(self._ranks),
            **header,
            "schema": SCHEMA,
            "format": FORMAT,
            "key": self.key,
            "lookup": factors.lookup,
            "hashes": factors.hashes,
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
            "factors": {"size": record.size, "sha256": record.sha256},
            "sources": self._sources,
            "aot": aot,
        }
        self._write(HEADER_FILE, seal(body, "header"))
        other = self._place / "aot" if aot is not None else None
        with self._writing():
            flush_tree(self.path)
            if other is not None:
                stage_aot(Entry(self.path), other)
        if make_room is not None:
            make_room()
        return publish_folder(self._root, self.path, self.key, sorted(self._ranks), other)

    def _manifest(self, rank: str) -> dict[str, Any]:
        files = dict(self._files[rank])
        for artifact in (artifact for used in self._parts[rank].values() for artifact in used):
            for name, record in self._artifacts[artifact].items():
                files[f"artifacts/{artifact}/{name}"] = record
        return {
            "schema": SCHEMA,
            "rank": rank,
            "key": self.key,
            "files": records_json(files),
            "parts": {prefix: {"artifacts": used} for prefix, used in self._parts[rank].items()},
            **self._ranks[rank],
        }

    def _write(self, name: str, data: bytes) -> FileRecord:
        path = self.path / name
        with typed_os_errors(self._root.path, len(data)):
            os.makedirs(path.parent, mode=0o700, exist_ok=True)
            return write_new(path, data)

    def _writing(self) -> AbstractContextManager[None]:
        return typed_os_errors(self._root.path)


def _file_parts(name: str) -> tuple[str, ...]:
    parts = relative_parts(name)
    if any(len(os.fsencode(part)) > _MAX_NAME_BYTES for part in parts):
        raise ValueError(
            f"a name of an artifact's file is longer than {_MAX_NAME_BYTES} bytes: {name[:40]}..."
        )
    return parts


def _stream(content: bytes | Path) -> BinaryIO:
    return BytesIO(content) if isinstance(content, bytes) else open(content, "rb")
