"""The reader of Inductor's own cache folder, as torch 2.11 to 2.13 write it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import UnknownLayout
from graphkiln.cache.inspect.catalogue import Catalogue
from graphkiln.cache.layouts.compiled import Compiled, sources_of
from graphkiln.cache.layouts.files import FileFault, Stat, iso_time, read_file, seen_text, unread_in, walk
from graphkiln.cache.layouts.found import UNKNOWN, ForeignAccount, ForeignFault, ForeignRow, ForeignVerdict
from graphkiln.cache.layouts.inductor_files import PICKLED, SOURCE, Effects, file_faults

# Sources and libraries are shared by all graphs, and nothing tells which of them a graph uses.
GENERATED = "generated"
FORMS = {"f": "fx graph", "a": "AOTAutograd"}
EFFECTS = Effects(
    link="torch follows it, wherever it leads",
    special="what opens it waits for ever, or fails (likely)",
    source_syntax="each compile that needs it fails with SyntaxError",
    source_other="torch runs it as it stands, without complaint",
    library_cut="the process dies with SIGBUS where it is loaded",
    library_none="an import error at every start that needs it",
    probe_empty="a C++ compile error at each start, or kernels without vectors",
    pickle="torch warns and recompiles; the damaged file stays",
)


@dataclass(frozen=True)
class InductorReader:
    """Reads what `TORCHINDUCTOR_CACHE_DIR` holds: a row for each graph's key, one for what they share."""

    name: str = "inductor"

    def places(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """Return where Inductor keeps its cache."""
        named = environ.get("TORCHINDUCTOR_CACHE_DIR", "")
        user = environ.get("USER") or environ.get("LOGNAME") or "root"
        default = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")
        return [Path(place) for place in (named, default) if place]

    def scan(self, root: Path) -> Catalogue:
        """Return the entries, newest first."""
        files = walk(root)
        groups: dict[str, dict[str, Stat]] = {}
        other = []
        for name, stat in files.items():
            match = PICKLED.fullmatch(name)
            if match:
                groups.setdefault(f"{match['kind']}/{match['key']}", {})[name] = stat
            elif name.split("/")[0] in ("triton", "precompiled_headers"):
                other.append(name)
            else:
                groups.setdefault(GENERATED, {})[name] = stat
        if not any(key != GENERATED for key in groups) and not any(map(SOURCE.fullmatch, files)):
            raise UnknownLayout(str(root), self.name, f"it holds {seen_text(root)}")
        rows = [self._row(root, key, held) for key, held in groups.items()]
        ordered = sorted(rows, key=lambda row: (row.created, row.id), reverse=True)
        return Catalogue(root, tuple(ordered), tuple(sorted({name.split("/")[0] for name in other})))

    def _row(self, root: Path, key: str, held: Mapping[str, Stat]) -> ForeignRow:
        name = key.rpartition("/")[2]
        created = min((stat.mtime for stat in held.values()), default=0.0)
        empty = next(
            (file for file, stat in sorted(held.items()) if not stat.size and PICKLED.fullmatch(file)), ""
        )
        lone, unread = key == GENERATED, unread_in(held)
        return ForeignRow(
            GENERATED if lone else name[:10],
            root if lone else root / key,
            key="" if lone else name,
            model=GENERATED if lone else FORMS[name[0]],
            size=sum(stat.size for stat in held.values()),
            files=len(held),
            created=iso_time(created),
            hits=None,
            health=UNKNOWN if unread else "broken" if empty else "sound",
            fault=f"{unread}: unread" if unread else f"{empty}: size (empty)" if empty else "",
            unread=unread,
            layout=self.name,
            form="sources and libraries" if lone else FORMS[name[0]],
            folders=() if lone else (root / key,),
            unit=(root, tuple(sorted(held))),
            seen={}
            if lone
            else {root / key: {name.removeprefix(f"{key}/"): stat for name, stat in held.items()}},
            reader=self,
        )

    def account(self, row: ForeignRow) -> ForeignAccount:
        """Return what a graph's pickles say; of what is shared only its files."""
        compiled = [one for one in map(sources_of, _pickles(row)) if one]
        one = compiled[0] if compiled else Compiled()
        about = [
            ("source", f"{one.source_name}.py" if one.source_name else ""),
            ("took", f"{one.seconds:.2f} s to compile" if one.seconds else ""),
            ("copies", f"{len(compiled)} under one key" if len(compiled) > 1 else ""),
        ]
        return ForeignAccount(
            row,
            about=tuple(pair for pair in about if pair[1]),
            factors={"compiler": _settings(one)} if compiled else {},
            graphs={"graph.py": one.graph} if one.graph else {},
            sources={f"{one.source_name}.py": one.source} if one.source else {},
            build={"kernels": one.kernels, "vectorised kernels": one.vectorised} if compiled else {},
            versions=dict(one.versions),
            notes=("which libraries a graph uses is not stored",) if compiled else (),
        )

    def verify(self, row: ForeignRow) -> ForeignVerdict:
        """Return what is wrong with the files of a row, by names that follow from their content."""
        root, names = row.unit
        files = walk(root)
        there = [name for name in names if name in files]
        faults = list(file_faults(files, there, partial(read_file, root), EFFECTS))
        faults += [
            ForeignFault(name, "missing", "it went away meanwhile") for name in names if name not in files
        ]
        return ForeignVerdict(row.id, row.path, tuple(faults), (), row.size, row.files)


def _pickles(row: ForeignRow) -> Iterator[bytes]:
    root, names = row.unit
    pickled: Iterable[str] = filter(PICKLED.fullmatch, names)
    for name in pickled:
        try:
            yield read_file(root, name)
        except FileFault:
            continue


def _settings(one: Compiled) -> dict[str, Any]:
    kept = {name: text for name, text in one.key.items() if not name.startswith(("gm", "example_inputs"))}
    return {**one.versions, "settings": {**kept, **one.settings}, "environment": dict(one.environment)}
