"""What lies in a vLLM cache: short-hash folders and AOT folders, each walked once and read where needed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from graphkiln.cache.errors import UnknownLayout
from graphkiln.cache.layouts.files import (
    UNREAD,
    FileFault,
    Stat,
    can_list,
    folders_in,
    last_byte,
    names_in,
    open_file,
    read_file,
    read_head,
    seen_text,
    unread_in,
    walk,
)
from graphkiln.cache.layouts.vllm.artifact import NAME as ARTIFACT
from graphkiln.cache.layouts.vllm.factor_file import FACTOR_FILE, FactorFile, read_factor_file
from graphkiln.cache.layouts.vllm.graph import GRAPH_FILE, dtype_of
from graphkiln.cache.layouts.vllm.index import INDEX_FILE
from graphkiln.cache.layouts.vllm.model import MODEL_FILE, STOP, Model, SeenModels, Summary, read_model

PIECES, AOT = "torch_compile_cache", "torch_aot_compile"
SHORT, LONG = re.compile(r"[0-9a-f]{10}"), re.compile(r"[0-9a-f]{64}")
RANK = re.compile(r"rank_(\d{1,6}_\d{1,6})")
# What a root holds before anything was compiled in it.
_ROOT_NAMES = {"modelinfos", "dummy_cache"}
_PART_FILE = re.compile(rf"(rank_\d+_\d+)/([^/]+)/(?:{FACTOR_FILE}|{GRAPH_FILE}|{INDEX_FILE}|artifact_.*)")


@dataclass(frozen=True)
class Folder:
    """A folder of either kind: every file in it by its relative path."""

    path: Path
    files: Mapping[str, Stat]

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def ranks(self) -> tuple[str, ...]:
        """The ranks that have a folder with a file in it, without `rank_`."""
        found = {match[1] for name in self.files if (match := RANK.match(name))}
        return tuple(sorted(found))

    @property
    def out_of_place(self) -> FileFault | None:
        """What is wrong where no folder stands in its place; a closed one is a folder."""
        seen = self.files.get(".")
        if seen is None or seen.kind == UNREAD:
            return None
        if seen.kind == "link":
            return FileFault(".", "symlink", "a link stands where a folder should be, and none is followed")
        return FileFault(".", "unreadable", "a file stands where a folder should be")

    def mtime(self, name: str) -> float | None:
        stat = self.files.get(name)
        return None if stat is None else stat.mtime

    def text(self, name: str) -> str:
        """Return the text of a file, "" for one that cannot be read."""
        try:
            return read_file(self.path, name).decode("utf-8", "replace")
        except FileFault:
            return ""


@dataclass(frozen=True)
class PieceFolder(Folder):
    """A short-hash folder."""

    @cached_property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Every rank and prefix that holds anything of vLLM's."""
        found = {(match[1], match[2]) for name in self.files if (match := _PART_FILE.match(name))}
        return tuple(sorted((rank.removeprefix("rank_"), prefix) for rank, prefix in found))

    @property
    def first(self) -> str:
        """The path of the first part's folder, with a slash at its end; "" where there is none."""
        return next((f"rank_{rank}/{prefix}/" for rank, prefix in self.parts), "")

    @cached_property
    def factors(self) -> FactorFile | FileFault:
        """The factors of the first part; those of the others are compared by `verify`."""
        try:
            return read_factor_file(self.path, f"{self.first}{FACTOR_FILE}")
        except FileFault as fault:
            return fault

    @property
    def known_factors(self) -> FactorFile | None:
        return self.factors if isinstance(self.factors, FactorFile) else None

    @cached_property
    def dtype(self) -> str:
        return dtype_of(read_head(self.path, f"{self.first}{GRAPH_FILE}"))

    @property
    def finished(self) -> bool:
        """Whether a compile came to its end: the graph's text is written after it."""
        return f"{self.first}{GRAPH_FILE}" in self.files

    @property
    def indexed(self) -> bool:
        return any(name.endswith(f"/{INDEX_FILE}") for name in self.files)

    def artifacts(self, rank: str, prefix: str) -> list[str]:
        """Return the names of the artifacts of one part, files and unpacked folders."""
        start = f"rank_{rank}/{prefix}/"
        names = {name.removeprefix(start).partition("/")[0] for name in self.files if name.startswith(start)}
        return sorted(name for name in names if ARTIFACT.fullmatch(name))

    @cached_property
    def made(self) -> float | None:
        """When its factor file was written, which is before anything was compiled."""
        times = [stat.mtime for name, stat in self.files.items() if name.endswith(f"/{FACTOR_FILE}")]
        return min(times, default=min((stat.mtime for stat in self.files.values()), default=None))


@dataclass(frozen=True)
class AotFolder(Folder):
    """An AOT folder."""

    # What the first rank's file that can be read says in short, or what is wrong with the first.
    summary: Summary | None = None
    unreadable: FileFault | None = None

    @property
    def models(self) -> list[str]:
        """The files of all ranks that have one."""
        names = (f"rank_{rank}/{MODEL_FILE}" for rank in self.ranks)
        return [name for name in names if name in self.files]

    def model(self, rank: str) -> Model | FileFault:
        """Return what the file of a rank says, or what is wrong with it; it is read each time."""
        name = f"rank_{rank}/{MODEL_FILE}"
        try:
            return read_model(read_file(self.path, name), name)
        except FileFault as fault:
            return fault

    @cached_property
    def fault(self) -> FileFault | None:
        """What is wrong with the first rank's file that is there; of the others only the end is looked at."""
        if self.summary is None:
            return self.unreadable
        for name in self.models:
            end = last_byte(self.path, name)
            if end != STOP:
                return FileFault(name, "unreadable", "pickle cut off" if end else "empty")
        return None

    @cached_property
    def made(self) -> float | None:
        """When its first `model` was written; without one when its first file was."""
        models = [stat.mtime for name, stat in self.files.items() if name.endswith(f"/{MODEL_FILE}")]
        return min(models, default=min((stat.mtime for stat in self.files.values()), default=None))


@dataclass(frozen=True)
class VllmTree:
    """One cache: `root` is the folder that holds both families, `foreign` are names in it that are neither.

    `unkeyed` says that the folder was named by the user, so that no name follows from its factors.
    """

    root: Path
    pieces: tuple[PieceFolder, ...]
    aots: tuple[AotFolder, ...]
    foreign: tuple[str, ...] = ()
    unkeyed: bool = False
    # The first place among the AOT folders that cannot be looked into: whose it is nobody can tell.
    unread: str = ""
    # The first short-hash folder whose factors cannot be looked into: it may be any AOT folder's.
    closed: str = ""


def scan_tree(path: Path) -> VllmTree:
    """Return what lies in a vLLM cache, given its root, or the folder in it that holds the entries.

    A folder that a deployment named itself (`cache_dir`) is one entry. `UnknownLayout` for anything else.
    """
    base = path / PIECES if (path / PIECES).is_dir() else path
    names = folders_in(base)
    shorts = [name for name in names_in(base) if SHORT.fullmatch(name)]
    if not any(name in names for name in (*shorts, AOT)):
        if any(RANK.fullmatch(name) for name in names):
            return VllmTree(base, (PieceFolder(base, walk(base)),), (), unkeyed=True)
        if base.name != PIECES and not _ROOT_NAMES & set(names):
            raise UnknownLayout(str(path), "vllm", f"it holds {seen_text(path)}")
    pieces = tuple(PieceFolder(base / name, walk(base / name)) for name in shorts)
    # A link in its place is not followed: what lies behind it may be anybody's.
    longs = [name for name in names_in(base / AOT) if LONG.fullmatch(name)] if AOT in names else []
    seen = SeenModels()
    aots = tuple(_looked_into(base / AOT / name, seen) for name in longs)
    hidden = [f"{AOT}/{one.name[:10]}/{name}" for one in aots if (name := unread_in(one.files))]
    closed_aot = AOT not in names and os.path.lexists(base / AOT)
    unread = hidden[0] if hidden else AOT if closed_aot or not can_list(base / AOT) else ""
    closed = next((one.name for one in pieces if one.known_factors is None and unread_in(one.files)), "")
    foreign = tuple(_foreign(base, {*shorts, AOT}, set(longs)))
    return VllmTree(base, pieces, aots, foreign, unread=unread, closed=closed)


def _looked_into(path: Path, seen: SeenModels) -> AotFolder:
    """Return an AOT folder with what the first rank's `model` that can be read says in short."""
    folder, fault = AotFolder(path, walk(path)), None
    for name in folder.models:
        try:
            with open_file(path, name) as whole:
                return replace(folder, summary=seen.summary(whole, name))
        except FileFault as found:
            fault = fault or found
    return replace(folder, unreadable=fault)


def _foreign(base: Path, known: set[str], longs: set[str]) -> Iterator[str]:
    for folder, ours in ((base, known), (base / AOT, longs)):
        try:
            names = sorted(set(os.listdir(folder)) - ours)
        except OSError:
            continue
        yield from (name if folder == base else f"{AOT}/{name}" for name in names)
