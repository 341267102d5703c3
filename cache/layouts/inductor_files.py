"""Every check that the files of an Inductor folder allow: names that follow from content, whole libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphkiln.cache.layouts.content import code_name, elf_fault, parses, source_name
from graphkiln.cache.layouts.files import UNREAD, FileFault, Stat
from graphkiln.cache.layouts.found import ForeignFault, unread_fault

_STEM = "[a-z2-7]{51}"
SOURCE = re.compile(rf"(?:.*/)?[a-z2-7]{{2}}/(c{_STEM})\.py")
LIBRARY = re.compile(rf"(?:.*/)?[a-z2-7]{{2}}/c{_STEM}(\.main|\.kernel|\.wrapper|\.header)?\.so")
PICKLED = re.compile(
    rf"(?:.*/)?(?P<kind>fxgraph/[a-z2-7]{{2}}|aotautograd)/(?P<key>[fa]{_STEM})/(?P<name>[^/]+)"
)
_CONTENT = re.compile(_STEM)


@dataclass(frozen=True)
class Effects:
    """What the program does with each kind of damage."""

    link: str
    special: str
    source_syntax: str
    source_other: str
    library_cut: str
    library_none: str
    probe_empty: str
    pickle: str


def file_faults(
    files: Mapping[str, Stat], names: Iterable[str], read: Callable[[str], bytes], effects: Effects
) -> Iterator[ForeignFault]:
    """Yield what is wrong with the named files of Inductor's; `read` gives their bytes."""
    for name in sorted(names):
        if files[name].kind == UNREAD:
            yield unread_fault(name)
            continue
        if files[name].kind == "other":
            yield ForeignFault(name, "unreadable", "not a regular file", effects.special)
            continue
        if files[name].kind == "link":
            yield ForeignFault(name, "symlink", "no link is followed", effects.link)
            continue
        try:
            fault = _fault(name, read, effects)
        except FileFault as unread:
            fault = ForeignFault(name, unread.kind, unread.detail, effects.library_none)
        if fault is not None:
            yield fault


def _fault(name: str, read: Callable[[str], bytes], effects: Effects) -> ForeignFault | None:
    if match := SOURCE.fullmatch(name):
        text = read(name)
        if source_name(text) == match[1]:
            return None
        wrong = parses(text)
        detail = f"its content is not what its name says{f' ({wrong})' if wrong else ''}"
        return ForeignFault(name, "digest", detail, effects.source_syntax if wrong else effects.source_other)
    if match := LIBRARY.fullmatch(name):
        data = read(name)
        wrong = elf_fault(data)
        if not wrong:
            return None
        # What has no part of its own name is the probe for the CPU's vectors.
        probe = match[1] is None and not data
        cut = effects.library_cut if wrong.startswith("cut off: ") else effects.library_none
        return ForeignFault(name, "size" if "cut" in wrong or not data else "unreadable", wrong,
                            effects.probe_empty if probe else cut)  # fmt: skip
    if match := PICKLED.fullmatch(name):
        if not _CONTENT.fullmatch(match["name"]):
            return None
        data = read(name)
        if code_name(data) != match["name"]:
            kind = "digest" if data else "size"
            return ForeignFault(name, kind, "its content is not what its name says", effects.pickle)
    return None
