"""The entries of a vLLM cache as rows: what can be told without reading every byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from graphkiln.cache.layouts.files import UNREAD, FileFault, iso_time, unread_in
from graphkiln.cache.layouts.found import LITTER, UNKNOWN, ForeignRow
from graphkiln.cache.layouts.vllm.factor_file import FactorFile
from graphkiln.cache.layouts.vllm.index import ADAPTOR, Row, read_index
from graphkiln.cache.layouts.vllm.links import Unit
from graphkiln.cache.layouts.vllm.model import MODEL_FILE, Model
from graphkiln.cache.layouts.vllm.scan import AotFolder, Folder, PieceFolder, VllmTree

_RANK = r"rank_\d+_\d+"
_KNOWN = re.compile(
    rf"{_RANK}/[^/]+/(cache_key_factors\.json|computation_graph\.py|vllm_compile_cache\.py|transformed_code\.py)"
    rf"|{_RANK}/[^/]+/artifact_compile_range_\d+_\d+_subgraph_\d+(/.+)?|{_RANK}/model(\.\d+\.tmp)?"
    rf"|({_RANK}/)?(inductor_cache|triton_cache)/.+|({_RANK}/([^/]+/)?)?tmp[a-z0-9_]+"
)
DISABLED = "VLLM_DISABLE_COMPILE_CACHE"
_NO_AOT = "no AOT folder belongs to it"


def row_of(unit: Unit, tree: VllmTree) -> ForeignRow:
    """Return the row of one unit of a tree."""
    folders = [folder for folder in (unit.pieces, unit.aot) if folder is not None]
    main: Folder = folders[0]
    factors = unit.pieces.known_factors if unit.pieces else None
    model = unit.aot.summary if unit.aot else None
    hidden = next(filter(None, (unread_in(folder.files) for folder in folders)), "")
    if not hidden and unit.aot is None and not unit.overwritten_by and _nothing_to_load(unit) == _NO_AOT:
        # Its AOT folder may lie there.
        hidden = tree.unread
    health, fault = (UNKNOWN, f"{hidden}: unread") if hidden else _health(unit, unkeyed=tree.unkeyed)
    form = form_of(unit)
    return ForeignRow(
        unit.id,
        main.path,
        key=factors.key if factors else (unit.aot.name if unit.aot and not unit.pieces else ""),
        hashes=factors.hashes if factors else {},
        model=model.model_class if model else _class_in(unit.pieces),
        target=(model.versions.get("gpu") or model.device) if model else "",
        dtype=unit.pieces.dtype if unit.pieces else "",
        size=sum(stat.size for folder in folders for stat in folder.files.values()),
        files=sum(len(folder.files) for folder in folders),
        created=iso_time(min((made for folder in folders if (made := _made(folder))), default=None)),
        last_used=_last_used(unit, form),
        hits=None,
        health=health,
        fault=fault,
        superseded=bool(unit.overwritten_by),
        layout="vllm",
        form=form,
        folders=tuple(folder.path for folder in folders),
        seen={folder.path: folder.files for folder in folders},
        foreign=tuple(foreign_files(unit)),
        unread=hidden,
        closed=tree.closed if unit.pieces is None or (unit.aot and not unit.certain) else "",
        guess="" if unit.certain or not unit.aot else f"its AOT folder {unit.aot.name[:10]} is a guess",
        unit=unit,
    )


def foreign_files(unit: Unit) -> Iterator[str]:
    """Yield the files of an entry that neither vLLM nor what it calls has written."""
    for folder in (unit.pieces, unit.aot):
        for name in sorted(folder.files) if folder else ():
            assert folder is not None
            if _KNOWN.fullmatch(name) is None and folder.files[name].kind != UNREAD:
                yield name


def superseded(rows: list[ForeignRow]) -> list[ForeignRow]:
    """Return the rows, those marked that a newer entry of the same env, config and device replaced."""
    newest: dict[tuple[str, ...], str] = {}
    for row in rows:
        if row.health == "sound" and row.hashes:
            newest[_group(row)] = max(newest.get(_group(row), ""), row.created)
    return [
        replace(row, superseded=True)
        # Of what has no known time nobody can say that another one is newer.
        if row.hashes and row.created and newest.get(_group(row), "") > row.created
        else row
        for row in rows
    ]


def form_of(unit: Unit) -> str:
    """Return in which form what a start loads lies there: mega AOT, AOT, pieces, adaptor, or nothing."""
    model = unit.aot.summary if unit.aot else None
    if model and model.never_loads:
        return "trace once"
    if model and (model.mega or not unit.pieces):
        return "mega AOT" if model.mega else "AOT"
    rows = index_rows(unit.pieces) if unit.pieces else []
    if any(row.adaptor == ADAPTOR for row in rows):
        return "adaptor"
    if unit.pieces and (rows or unit.pieces.indexed):
        binary = all(
            f"rank_{rank}/{prefix}/{name}" in unit.pieces.files
            for rank, prefix in unit.pieces.parts
            for name in unit.pieces.artifacts(rank, prefix)
        )
        return ("AOT" if model else "pieces") + ("" if binary else ", unpacked")
    if unit.aot and any(name.endswith(f"/{MODEL_FILE}") for name in unit.aot.files):
        return "AOT"
    return "nothing to load"


def index_rows(folder: PieceFolder) -> list[Row]:
    """Return the lines of every index that can be read."""
    found: list[Row] = []
    for rank, prefix in folder.parts:
        try:
            found += read_index(folder.path / f"rank_{rank}" / prefix)
        except FileFault:
            continue
    return found


def adaptor_rows(folder: PieceFolder) -> list[tuple[str, str, Row]]:
    """Return the lines of every index that name Inductor's own cache, with their rank and prefix."""
    found: list[tuple[str, str, Row]] = []
    for rank, prefix in folder.parts:
        try:
            rows = read_index(folder.path / f"rank_{rank}" / prefix)
        except FileFault:
            continue
        found += [(rank, prefix, row) for row in rows if row.adaptor == ADAPTOR]
    return found


def missing_ranks(unit: Unit) -> tuple[str, ...]:
    """Return the ranks that are not there although another folder has them, or a higher one is there.

    How many there should be is not stored.
    """
    folders = [folder for folder in (unit.pieces, unit.aot) if folder]
    have: list[set[str]] = []
    for folder in folders:
        models = isinstance(folder, AotFolder)
        there = {rank for rank in folder.ranks if not models or f"rank_{rank}/{MODEL_FILE}" in folder.files}
        # What may not be looked into holds a rank as long as nothing else is known.
        there |= {rank for rank in folder.ranks if f"rank_{rank}" in folder.files}
        # Without any there is nothing to compare, which is told otherwise.
        have += [there] if there else []
    known = set().union(*have) if have else set()
    highest = max((int(rank.partition("_")[0]) for rank in known), default=-1)
    groups = {rank.partition("_")[2] for rank in known}
    wanted = known | {f"{rank}_{group}" for group in groups if len(groups) == 1 for rank in range(highest)}
    return tuple(sorted(rank for rank in wanted if any(rank not in there for there in have)))


def _health(unit: Unit, *, unkeyed: bool) -> tuple[str, str]:
    """Return what names, sizes and the small files say, and why."""
    for folder in (unit.pieces, unit.aot):
        if folder and folder.out_of_place:
            return "broken", str(folder.out_of_place)
    if unit.overwritten_by:
        return LITTER, f"its AOT folder was overwritten when {unit.overwritten_by} was made"
    fault = _factor_fault(unit, unkeyed=unkeyed) or (unit.aot.fault if unit.aot else None)
    if fault is not None and fault.kind == "version":
        return UNKNOWN, str(fault)
    nothing = _nothing_to_load(unit)
    if nothing:
        return LITTER, nothing
    fault = fault or _piece_fault(unit.pieces)
    if fault is not None:
        return "broken", str(fault)
    missing = missing_ranks(unit)
    return ("partial", f"no rank {', '.join(missing)}") if missing else ("sound", "")


def _factor_fault(unit: Unit, *, unkeyed: bool) -> FileFault | None:
    if unit.pieces is None:
        return None
    if not unit.pieces.parts:
        seen = ", ".join(sorted(unit.pieces.files)[:4]) or "nothing"
        return FileFault(".", "version", f"it holds {seen}")
    factors = unit.pieces.factors
    if isinstance(factors, FileFault):
        return factors
    return None if unkeyed else name_fault(unit.pieces, factors)


def name_fault(folder: PieceFolder, factors: FactorFile) -> FileFault | None:
    """Return the fault of factors that do not give the folder's name: one of the two was changed."""
    if factors.key.startswith(folder.name):
        return None
    detail = f"the folder should be called {factors.key[:10]}: a factor was edited, or the folder renamed"
    return FileFault(f"{folder.first}cache_key_factors.json", "name", detail)


def _nothing_to_load(unit: Unit) -> str:
    """Return why no start could load anything of a unit, "" where one could."""
    model = unit.aot.summary if unit.aot else None
    if model and model.never_loads:
        return "vLLM cannot load what it saved with the stock CPU platform"
    has_model = unit.aot and any(name.endswith(f"/{MODEL_FILE}") for name in unit.aot.files)
    if has_model or (unit.pieces and (unit.pieces.indexed or _any_artifact(unit.pieces))):
        return ""
    factors = unit.pieces.known_factors if unit.pieces else None
    if factors and factors.env.get(DISABLED):
        return f"left by a run with {DISABLED}"
    if unit.pieces and not unit.pieces.finished:
        return "left by a run that failed or was killed"
    if unit.aot and unit.pieces is None:
        return "an AOT folder without a model"
    return "no model in its AOT folder" if unit.aot else _NO_AOT


def _any_artifact(folder: PieceFolder) -> bool:
    return any(folder.artifacts(rank, prefix) for rank, prefix in folder.parts)


def _piece_fault(folder: PieceFolder | None) -> FileFault | None:
    """Return the first fault of an index, and of an artifact that one names and that is not there."""
    for rank, prefix in folder.parts if folder else ():
        assert folder is not None
        start = f"rank_{rank}/{prefix}"
        if f"{start}/vllm_compile_cache.py" not in folder.files:
            continue
        try:
            rows = read_index(folder.path / f"rank_{rank}" / prefix)
        except FileFault as fault:
            return FileFault(f"{start}/{fault.name}", fault.kind, fault.detail)
        held = set(folder.artifacts(rank, prefix))
        for row in rows:
            if row.adaptor != ADAPTOR and row.handle not in held:
                return FileFault(f"{start}/{row.handle}", "missing")
    return None


def _class_in(folder: PieceFolder | None) -> str:
    """Return the file of the model's code that a graph's comments name, where no class is stored."""
    if folder is None:
        return ""
    text = folder.text(f"{folder.first}computation_graph.py")
    at = text.find("/model_executor/models/")
    return Path(text[at:].split(":", 1)[0]).stem if at >= 0 else ""


def _last_used(unit: Unit, form: str) -> str | None:
    """Return when a start last used it: with mega AOT off, a hit writes Inductor's own files again."""
    names = unit.aot.files if unit.aot and form.startswith("AOT") else {}
    # With mega AOT on nothing lies under fxgraph, and a hit writes nothing at all.
    if not any("/fxgraph/" in name for name in names):
        return None
    times = [stat.mtime for name, stat in names.items() if "/fxgraph/" in name or "/aotautograd/" in name]
    return iso_time(max(times, default=None)) or None


def _made(folder: Folder) -> float | None:
    return folder.made if isinstance(folder, (PieceFolder, AotFolder)) else None


def _group(row: ForeignRow) -> tuple[str, ...]:
    return row.hashes["env"], row.hashes["config"], row.target


def models_of(aot: AotFolder | None) -> dict[str, Model]:
    """Return the `model` of each rank that can be read."""
    found = {rank: aot.model(rank) for rank in aot.ranks} if aot else {}
    return {rank: model for rank, model in found.items() if isinstance(model, Model)}
