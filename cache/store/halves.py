"""The AOT folder of an entry: its other half. It comes before the entry and goes after it.

    torch_aot_compile/<64 hex: the whole key>/rank_<rank>_<dp>/model

It is made of the entry alone, so that a lost or damaged one is written again without a compile, and one
without its entry is of no use to a start that looks for it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from graphkiln.cache.errors import EntryDamaged, RootUnusable
from graphkiln.cache.factors.key import SHORT_DIGITS
from graphkiln.cache.store.aot import AotFile
from graphkiln.cache.store.aot_build import aot_bytes
from graphkiln.cache.store.aot_header import MAGIC, read_line
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.files import flush_folder, flush_tree, open_inside, tree_files, write_new
from graphkiln.cache.store.manifest import SHA256, rank_folder
from graphkiln.cache.store.reading import EntryFiles
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.sweep import own_folder, staging_name

AOT_FOLDER, AOT_NAME = "torch_aot_compile", "model"


def aot_name(key: str, rank: str) -> str:
    """Return the path of an AOT file relative to the cache folder."""
    return f"{AOT_FOLDER}/{key}/{rank_folder(rank)}/{AOT_NAME}"


def aot_folders(root: CacheRoot, start: str = "") -> list[Path]:
    """Return the AOT folders of keys that begin with `start`."""
    try:
        names = os.listdir(root.cache / AOT_FOLDER)
    except OSError:
        return []
    return [
        root.cache / AOT_FOLDER / name
        for name in sorted(names)
        if SHA256.fullmatch(name) and name.startswith(start)
    ]


def open_aot(root: CacheRoot, key: str, rank: str) -> AotFile:
    """Return the AOT file of a key, its header checked. `EntryDamaged`, also where there is none."""
    name = aot_name(key, rank)
    with EntryFiles(root.cache).reading(name), open_inside(root.cache, name) as stream:
        return _opened(os.dup(stream.fileno()), key)


def open_aot_at(path: Path) -> AotFile:
    """Return the AOT file at a path of the caller's. `EntryDamaged`; OSError where it cannot be opened."""
    return _opened(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "", str(path))


def find_aot(root: CacheRoot, lookup: str, rank: str) -> Iterator[AotFile | EntryDamaged]:
    """Yield the AOT files with this lookup, newest first, and then what is wrong with others of them.

    Of other files only the first line is read. One whose first line is not ours is told where it lies
    under the key of an entry with this lookup. `RootUnusable` for what is not a file's fault.
    """
    found: list[AotFile] = []
    damages: list[EntryDamaged] = []
    for folder in aot_folders(root):
        name = aot_name(folder.name, rank)
        try:
            with EntryFiles(root.cache).reading(name), open_inside(root.cache, name) as stream:
                if read_line(stream)[0] != lookup:
                    continue
        except EntryDamaged as damage:
            if damage.fault != "missing" and _is_looked_for(root, folder.name, lookup):
                damages.append(_named(damage, folder.name))
            continue
        try:
            found.append(open_aot(root, folder.name, rank))
        except EntryDamaged as damage:
            damages.append(_named(damage, folder.name))
    yield from sorted(found, key=lambda file: (file.header.created, file.header.key), reverse=True)
    yield from damages


def stage_aot(entry: Entry, place: Path) -> None:
    """Write the AOT files of a finished entry into the folder `place`, one a rank."""
    for rank in entry.ranks():
        folder = place / rank_folder(rank)
        os.makedirs(folder, mode=0o700)
        write_new(folder / AOT_NAME, aot_bytes(entry, rank, contained=entry.aot == "contained"))
    flush_tree(place)


def put_aot(root: CacheRoot, staged: Path, key: str) -> None:
    """Move staged AOT files to their place by rename; whatever lay there is gone. OSError."""
    target = root.cache / AOT_FOLDER / key
    os.makedirs(target.parent, mode=0o700, exist_ok=True)
    if os.path.lexists(target):
        _drop(root, target, key)
    os.rename(staged, target)
    flush_folder(target.parent)


def renew_aot(root: CacheRoot, entry: Entry, rank: str, *, contained: bool = False) -> bool:
    """Write the AOT file of one rank of a published entry again, unless it is right; say whether it was.

    `contained` makes a file self-contained that was not; one that is stays so. Raises OSError, and
    `EntryDamaged` for a broken entry; call it under the publish lock.
    """
    wanted = aot_bytes(entry, rank, contained=contained or _is_contained(root, entry, rank))
    folder = root.cache / AOT_FOLDER / entry.key / rank_folder(rank)
    with suppress(OSError), open_inside(root.cache, aot_name(entry.key, rank)) as stream:
        if stream.read(len(wanted) + 1) == wanted:
            return False
    with own_folder(root, staging_name(entry.key)) as place:
        # One deeper: what is renamed into the cache is not the folder that has the lock.
        staged = place / folder.name
        os.mkdir(staged, 0o700)
        write_new(staged / AOT_NAME, wanted)
        flush_tree(staged)
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
        if os.path.lexists(folder):
            _drop(root, folder, entry.key)
        os.rename(staged, folder)
        flush_folder(folder.parent)
    return True


def holds_artifacts(root: CacheRoot, key: str, rank: str) -> bool:
    """Say whether the AOT file of a key is there, its header sound, and self-contained."""
    try:
        file = open_aot(root, key, rank)
    except (EntryDamaged, RootUnusable):
        return False
    file.close()
    return file.header.contained


def faults_of_aot(root: CacheRoot, entry: Entry) -> Iterator[EntryDamaged]:
    """Yield what is wrong with the AOT files that an entry should have: one fault a file."""
    if entry.aot is None:
        return
    for rank in entry.ranks():
        name = aot_name(entry.key, rank)
        try:
            wanted = aot_bytes(entry, rank, contained=_is_contained(root, entry, rank))
        except EntryDamaged:
            # Of a broken entry nobody can say what the file should hold; the entry is told.
            continue
        try:
            with EntryFiles(root.cache).reading(name), open_inside(root.cache, name) as stream:
                found = stream.read(len(wanted) + 1)
            if found != wanted:
                raise EntryDamaged(entry.short, name, "digest", "it is not the file that this entry gives")
        except EntryDamaged as damage:
            yield EntryDamaged(entry.short, name, damage.fault, damage.detail)


def lone_halves(root: CacheRoot, keys: Iterable[str]) -> list[Path]:
    """Return the AOT folders of ours whose entry is none of `keys`; vLLM keeps files under such names too."""
    known = set(keys)
    return [folder for folder in aot_folders(root) if folder.name not in known and _is_ours(folder)]


def _is_ours(folder: Path) -> bool:
    names = list(tree_files(folder))
    try:
        heads = [_head(folder, name) for name in names]
    except OSError:
        return False
    return bool(names) and all(head == MAGIC for head in heads)


def _head(folder: Path, name: str) -> bytes:
    with open_inside(folder, name) as stream:
        return stream.read(len(MAGIC))


def _is_contained(root: CacheRoot, entry: Entry, rank: str) -> bool:
    """Whether the file that is there holds the artifacts, or where it cannot be read, the first one did."""
    try:
        file = open_aot(root, entry.key, rank)
    except (EntryDamaged, RootUnusable):
        return entry.aot == "contained"
    file.close()
    return file.header.contained


def _is_looked_for(root: CacheRoot, key: str, lookup: str) -> bool:
    try:
        entry = Entry(root.cache / key[:SHORT_DIGITS])
    except EntryDamaged:
        return False
    return entry.key == key and entry.lookup == lookup and entry.aot is not None


def _named(damage: EntryDamaged, key: str) -> EntryDamaged:
    return EntryDamaged(key[:SHORT_DIGITS], damage.file, damage.fault, damage.detail)


def _opened(descriptor: int, key: str, name: str = "") -> AotFile:
    """Return the AOT file behind a descriptor, which it keeps open as long as it lives."""
    stream = os.fdopen(descriptor, "rb", buffering=0)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR, "not a regular file", name)
        file = AotFile(stream, status.st_size, name or key[:SHORT_DIGITS])
        if key and file.header.key != key:
            raise file.damaged("header", f"its key begins {file.header.short}")
    except BaseException:
        stream.close()
        raise
    return file


def _drop(root: CacheRoot, path: Path, key: str) -> None:
    """Take away a file that can be made again: out of the way by one rename, then deleted."""
    with own_folder(root, staging_name(key)) as place:
        os.rename(path, place / path.name)
