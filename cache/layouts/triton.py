"""The reader of Triton's own cache folder, as Triton 3 writes it: one folder a compiled kernel."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import UnknownLayout
from graphkiln.cache.inspect.catalogue import Catalogue
from graphkiln.cache.layouts.content import elf_fault, triton_name
from graphkiln.cache.layouts.files import (
    UNREAD,
    FileFault,
    Stat,
    folders_in,
    iso_time,
    read_file,
    seen_text,
    unread_in,
    walk,
)
from graphkiln.cache.layouts.found import (
    UNKNOWN,
    ForeignAccount,
    ForeignFault,
    ForeignRow,
    ForeignVerdict,
    unread_fault,
)

FOLDER = re.compile(r"[A-Z2-7]{52}")
GROUP = "__grp__"
MOVED = "Triton looks there: a moved cache misses and compiles again"
GONE = "the load fails or compiles again (likely)"
_MOST = 16 << 20
_TEXTS = (".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".source")
# Whose bytes a loader maps; the rest is text.
_LIBRARIES = (".cubin", ".hsaco", ".so")


@dataclass(frozen=True)
class TritonReader:
    """Reads what `TRITON_CACHE_DIR` holds."""

    name: str = "triton"

    def places(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """Return where Triton keeps its cache."""
        home = environ.get("TRITON_HOME") or "~"
        found = (environ.get("TRITON_CACHE_DIR", ""), os.path.join(home, ".triton", "cache"))
        return [Path(os.path.expanduser(place)) for place in found if place]

    def scan(self, root: Path) -> Catalogue:
        """Return the entries, newest first."""
        names = folders_in(root)
        folders = [name for name in names if FOLDER.fullmatch(name)]
        if not folders:
            raise UnknownLayout(str(root), self.name, f"it holds {seen_text(root)}")
        rows = [self._row(root / name) for name in folders]
        ordered = sorted(rows, key=lambda row: (row.created, row.id), reverse=True)
        return Catalogue(root, tuple(ordered), tuple(sorted(set(names) - set(folders))))

    def _row(self, folder: Path) -> ForeignRow:
        files = walk(folder)
        facts = _facts(folder, files)
        target = facts.get("target")
        health, fault = _health(folder, files)
        created = min((stat.mtime for stat in files.values()), default=0.0)
        return ForeignRow(
            folder.name[:10],
            folder,
            key=folder.name,
            model=str(facts.get("name", "")) or next(iter(sorted(files)), ""),
            target=_target(target) if isinstance(target, Mapping) else "",
            size=sum(stat.size for stat in files.values()),
            files=len(files),
            created=iso_time(created),
            hits=None,
            health=health,
            fault=fault,
            layout=self.name,
            form="kernel" if facts else "host module",
            folders=(folder,),
            unread=unread_in(files),
            unit=files,
            seen={folder: files},
            reader=self,
        )

    def account(self, row: ForeignRow) -> ForeignAccount:
        """Return what a kernel's facts say."""
        facts = _facts(row.path, row.unit)
        version = facts.pop("triton_version", None)
        texts = {}
        for name in sorted(row.unit):
            if name.endswith((".ttir", ".ptx")):
                try:
                    texts[name] = read_file(row.path, name, _MOST).decode("utf-8", "replace")
                except FileFault:
                    continue
        versions = {"triton": str(version)} if version else {}
        return ForeignAccount(
            row, factors={"compiler": {**versions, **facts}} if facts else {}, graphs=texts,
            versions=versions,
            notes=("what the kernel's key was made of is not stored",),
        )  # fmt: skip

    def verify(self, row: ForeignRow) -> ForeignVerdict:
        """Return what is wrong with a kernel's files."""
        faults = tuple(sorted(_faults(row.path, row.unit), key=lambda fault: (fault.file, fault.kind)))
        return ForeignVerdict(row.id, row.path, faults, (), row.size, row.files)


def _faults(folder: Path, files: Mapping[str, Stat]) -> Iterator[ForeignFault]:
    groups = [name for name in files if name.startswith(GROUP) and name.endswith(".json")]
    for name in sorted(files):
        if files[name].kind == UNREAD:
            yield unread_fault(name)
            continue
        if files[name].kind != "file":
            yield ForeignFault(name, "symlink", "no link is followed", "Triton follows it")
            continue
        try:
            data = read_file(folder, name)
        except FileFault as fault:
            yield ForeignFault(name, fault.kind, fault.detail, GONE)
            continue
        wrong = elf_fault(data) if name.endswith(_LIBRARIES) else "empty" if not data else ""
        if wrong and (name.endswith((*_LIBRARIES, *_TEXTS, ".json"))):
            yield ForeignFault(name, "size" if "cut" in wrong or not data else "unreadable", wrong, GONE)
        elif name in groups:
            yield from _group_faults(folder, name, data, files)
        elif name.endswith(".json"):
            yield from _fact_faults(folder, name, data)
    if files and not groups and any(name.endswith(_TEXTS) for name in files):
        yield ForeignFault(".", "hollow", f"no {GROUP} file names what belongs together", "compiled again")


def _group_faults(folder: Path, name: str, data: bytes, files: Mapping[str, Stat]) -> Iterator[ForeignFault]:
    found = _object(data)
    children = found.get("child_paths") if found else None
    if not isinstance(children, dict):
        yield ForeignFault(
            name, "schema", "no child_paths in it", "Triton compiles the kernel again (likely)"
        )
        return
    for child in sorted(children):
        if child not in files:
            yield ForeignFault(child, "missing", f"{name} names it", GONE)
    elsewhere = sorted(str(place) for place in children.values() if Path(str(place)).parent != folder)
    if elsewhere:
        yield ForeignFault(name, "absolute path", elsewhere[0], MOVED)


def _fact_faults(folder: Path, name: str, data: bytes) -> Iterator[ForeignFault]:
    found = _object(data)
    if found is None:
        yield ForeignFault(name, "schema", "not a JSON object", GONE)
    elif isinstance(found.get("hash"), str):
        try:
            wanted = triton_name(found["hash"])
        except ValueError:
            wanted = ""
        if wanted != folder.name:
            yield ForeignFault(
                name, "name", f"its hash belongs to {wanted or 'nothing'}", "loaded all the same"
            )


def _health(folder: Path, files: Mapping[str, Stat]) -> tuple[str, str]:
    if unread := unread_in(files):
        return UNKNOWN, f"{unread}: unread"
    empty = next((name for name, stat in sorted(files.items()) if not stat.size), "")
    if not files:
        return "litter", "left by a compile that failed or was killed"
    return ("broken", f"{empty}: size (empty)") if empty else ("sound", "")


def _facts(folder: Path, files: Mapping[str, Stat]) -> dict[str, Any]:
    for name in sorted(files):
        if name.endswith(".json") and not name.startswith(GROUP):
            try:
                found = _object(read_file(folder, name, _MOST))
            except FileFault:
                continue
            if found:
                return found
    return {}


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _target(target: Mapping[str, Any]) -> str:
    return f"{target.get('backend')}:{target.get('arch')}"
