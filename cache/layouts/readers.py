"""The known layouts, and what `layout:path#id` means: which tree, and which entry in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.errors import AmbiguousEntry, EntryNotFound, NoIdGiven, UnknownLayout
from graphkiln.cache.inspect.catalogue import Catalogue
from graphkiln.cache.layouts.found import ForeignRow, Reader

LAYOUTS = ("vllm", "inductor", "triton")


@dataclass(frozen=True)
class TreeRef:
    """A tree of a layout, at `path` or where such trees lie, and the entry `id` in it or all."""

    layout: str
    path: Path | None = None
    id: str = ""

    @property
    def is_whole_tree(self) -> bool:
        """Whether it names no single entry, neither by an id nor by a path that leads to one."""
        return not self.id and (self.path is None or _root_of(self.path) == self.path)

    @property
    def listing(self) -> str:
        """The command that shows what lies in the tree."""
        where = f":{shlex.quote(str(_root_of(self.path)))}" if self.path else ""
        return f"graphkiln cache ls --layout {self.layout}{where}"


def parse_ref(text: str) -> TreeRef | None:
    """Return what `layout:path#id` means, path and id left out or not; None for another text.

    `NoIdGiven` for a # that nothing follows: the variable that should say which entry was not set.
    """
    layout, colon, rest = text.partition(":")
    if layout not in LAYOUTS or not colon:
        return None
    path, mark, name = rest.rpartition("#") if "#" in rest else (rest, "", "")
    ref = TreeRef(layout, Path(os.path.abspath(os.path.expanduser(path))) if path else None, name)
    if mark and not name.strip():
        raise NoIdGiven(text, ref.listing)
    return ref


def open_tree(ref: TreeRef, environ: Mapping[str, str] = os.environ) -> Catalogue:
    """Return the entries of a tree; `UnknownLayout` where none lies, `OSError` where it is closed."""
    found = _opened(ref, environ)
    # What cannot be listed is not empty: this raises the system's own error.
    os.listdir(found.root)
    return found


def _opened(ref: TreeRef, environ: Mapping[str, str]) -> Catalogue:
    reader = _reader(ref.layout)
    if ref.path is not None:
        if not ref.path.is_dir():
            seen = "it is no folder" if ref.path.exists() else "there is nothing"
            raise UnknownLayout(str(ref.path), ref.layout, seen)
        return reader.scan(Path(os.path.realpath(_root_of(ref.path))))
    places = reader.places(environ)
    for place in places:
        if place.is_dir():
            return reader.scan(Path(os.path.realpath(place)))
    raise UnknownLayout(" and ".join(map(str, places)), ref.layout, "there is nothing")


def _reader(layout: str) -> Reader:
    # Each is imported where it is asked for: a list of entries starts the faster.
    if layout == "vllm":
        from graphkiln.cache.layouts.vllm.reader import VllmReader

        return VllmReader()
    if layout == "inductor":
        from graphkiln.cache.layouts.inductor import InductorReader

        return InductorReader()
    from graphkiln.cache.layouts.triton import TritonReader

    return TritonReader()


def find_entry(ref: TreeRef, environ: Mapping[str, str] = os.environ) -> ForeignRow:
    """Return the one entry that a reference names; `EntryNotFound`, `AmbiguousEntry`, `UnknownLayout`."""
    rows = chosen_rows(ref, environ)
    text = f"{ref.layout}:{ref.path or ''}#{ref.id}"
    if not rows:
        raise EntryNotFound(text, ref.listing)
    if len(rows) > 1:
        raise AmbiguousEntry(text, tuple(row.id for row in rows))
    return rows[0]


def chosen_rows(ref: TreeRef, environ: Mapping[str, str] = os.environ) -> list[ForeignRow]:
    """Return the entries that a reference names: by the beginning of an id, a key or a folder's name."""
    rows = [row for row in open_tree(ref, environ).rows if isinstance(row, ForeignRow)]
    inside = None if ref.path is None or _root_of(ref.path) == ref.path else ref.path.name
    for name in filter(None, (inside, ref.id)):
        rows = [row for row in rows if _answers(row, name)]
    return rows


def _answers(row: ForeignRow, name: str) -> bool:
    return any(text.startswith(name) for text in (row.id, row.key, *(folder.name for folder in row.folders)))


def _root_of(path: Path) -> Path:
    """Return the folder that holds all entries, for a path that leads to one of them."""
    if path.parent.name == "torch_aot_compile":
        return path.parent.parent
    return (
        path.parent
        if path.parent.name == "torch_compile_cache" and path.name != "torch_aot_compile"
        else path
    )
