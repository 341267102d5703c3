"""Whether an entry of a vLLM cache is what it should be, by everything that the layout lets one check."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial

from graphkiln.cache.layouts.compiled import read_compiled
from graphkiln.cache.layouts.content import parses, source_name
from graphkiln.cache.layouts.files import UNREAD, FileFault, is_folder, read_file, unread_in
from graphkiln.cache.layouts.found import ForeignFault, ForeignRow, ForeignVerdict, unread_fault
from graphkiln.cache.layouts.inductor_files import Effects, file_faults
from graphkiln.cache.layouts.pickles import PickleFault
from graphkiln.cache.layouts.vllm import effects
from graphkiln.cache.layouts.vllm.artifact import read_artifact
from graphkiln.cache.layouts.vllm.factor_file import FACTOR_FILE, read_factor_file
from graphkiln.cache.layouts.vllm.graph import GRAPH_FILE
from graphkiln.cache.layouts.vllm.index import ADAPTOR, INDEX_FILE, Row, read_index
from graphkiln.cache.layouts.vllm.links import Unit
from graphkiln.cache.layouts.vllm.model import MODEL_FILE, Model
from graphkiln.cache.layouts.vllm.rows import missing_ranks, name_fault
from graphkiln.cache.layouts.vllm.scan import AOT, AotFolder, Folder, PieceFolder

_INDUCTOR = Effects(
    effects.LINK, effects.SPECIAL, effects.SOURCE_SYNTAX, effects.SOURCE_OTHER, effects.LIBRARY_CUT,
    effects.LIBRARY_NONE, effects.PROBE_EMPTY, effects.PICKLE_DAMAGED,
)  # fmt: skip
_DRAFT = re.compile(r"(.*/)?(model\.\d+\.tmp|tmp[a-z0-9_]{8}|\..*\.tmp)")


def verdict_of(row: ForeignRow) -> ForeignVerdict:
    """Return what is wrong with an entry and what vLLM would do about it; every byte is read."""
    unit: Unit = row.unit
    faults: list[ForeignFault] = []
    notes: list[str] = []
    if unit.pieces:
        faults += _piece_faults(unit, notes, keyed=row.id == unit.pieces.name and len(row.id) == 10)
    if unit.aot:
        faults += _aot_faults(unit, unit.aot, notes)
    if row.unread and not any(fault.kind == UNREAD for fault in faults):
        place = row.path.parent / row.unread
        none = row.unread == AOT and not is_folder(place)
        why = "no folder: a link or a file stands there, and no link is followed"
        faults.append(unread_fault(AOT, why) if none else unread_fault(row.unread))
    if row.health == "litter" and not row.superseded and not _never(unit):
        faults.append(ForeignFault(".", "hollow", row.fault, effects.NOTHING))
    if unit.pieces is None and row.health == "sound":
        notes.append(effects.NO_PIECES)
    for rank in missing_ranks(unit):
        notes.append(f"rank_{rank}: {effects.RANK_GONE}")
    told = {(fault.file, fault.kind): fault for fault in faults if _is_known(unit, fault)}
    ordered = sorted(told.values(), key=lambda fault: (fault.file, fault.kind))
    return ForeignVerdict(
        row.id, row.path, tuple(ordered), missing_ranks(unit), row.size, row.files,
        health=row.health if row.health == "litter" else "sound", notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _is_known(unit: Unit, fault: ForeignFault) -> bool:
    """Return whether a fault is more than that something may not be looked into, which is told as such."""
    if fault.kind == UNREAD:
        return True
    hidden = [
        name for name, seen in (unit.pieces.files if unit.pieces else {}).items() if seen.kind == UNREAD
    ]
    if unit.aot:
        base = aot_base(unit.aot)
        hidden += [base + name for name, seen in unit.aot.files.items() if seen.kind == UNREAD]
    # The folder itself goes by the name of a dot.
    places = [name.removesuffix(".") if f"/{name}".endswith("/.") else f"{name}/" for name in hidden]
    return fault.file not in hidden and not any(fault.file.startswith(place) for place in places)


def _never(unit: Unit) -> bool:
    model = unit.aot.summary if unit.aot else None
    return model is not None and model.never_loads


def _reading(folder: Folder) -> Callable[[str], bytes]:
    return partial(read_file, folder.path)


def _inductor_faults(folder: Folder) -> Iterator[ForeignFault]:
    """Yield the faults of everything that is Inductor's, and of links anywhere."""
    yield from file_faults(folder.files, folder.files, _reading(folder), _INDUCTOR)


def _piece_faults(unit: Unit, notes: list[str], *, keyed: bool) -> Iterator[ForeignFault]:
    folder = unit.pieces
    assert folder is not None
    if folder.out_of_place:
        yield _in_its_place(folder.out_of_place)
        return
    if not folder.parts and unread_in(folder.files):
        yield from _inductor_faults(folder)
        return
    if not folder.parts:
        seen = ", ".join(sorted(folder.files)[:4]) or "nothing"
        yield ForeignFault(".", "version", f"it holds {seen}", effects.UNKNOWN_FORM)
        return
    hashes = set()
    for rank, prefix in folder.parts:
        part = f"rank_{rank}/{prefix}"
        try:
            factors = read_factor_file(folder.path, f"{part}/{FACTOR_FILE}")
            hashes.add(factors.key)
            wrong = name_fault(folder, factors) if keyed else None
            if wrong:
                yield ForeignFault(f"{part}/{FACTOR_FILE}", wrong.kind, wrong.detail, effects.FACTORS)
        except FileFault as fault:
            effect = effects.UNKNOWN_FORM if fault.kind == "version" else effects.FACTORS
            yield ForeignFault(f"{part}/{FACTOR_FILE}", fault.kind, fault.detail, effect)
        graph = folder.files.get(f"{part}/{GRAPH_FILE}")
        if graph is not None and graph.size == 0:
            yield ForeignFault(f"{part}/{GRAPH_FILE}", "size", "empty", effects.GRAPH)
        yield from _index_faults(folder, part, notes)
    if len(hashes) > 1:
        notes.append("its ranks were not made with the same factors")
    yield from _artifact_faults(folder, notes)
    yield from _inductor_faults(folder)


def _index_faults(folder: PieceFolder, part: str, notes: list[str]) -> Iterator[ForeignFault]:
    name = f"{part}/{INDEX_FILE}"
    rank, _, prefix = part.removeprefix("rank_").partition("/")
    held = folder.artifacts(rank, prefix)
    if name not in folder.files:
        for artifact in held:
            yield ForeignFault(f"{part}/{artifact}", "extra", "no index names it", effects.NOT_READ)
        return
    try:
        rows = read_index(folder.path / f"rank_{rank}" / prefix)
    except FileFault as fault:
        broken = fault.kind == "unreadable" or fault.kind == "symlink"
        effect = effects.INDEX_UNREADABLE if broken else effects.INDEX_SHAPE
        yield ForeignFault(name, fault.kind, fault.detail,
                           effects.UNKNOWN_FORM if fault.kind == "version" else effect)  # fmt: skip
        return
    for row in rows:
        if row.adaptor == ADAPTOR:
            yield from _adaptor_faults(folder, rank, row)
        elif row.handle not in held:
            yield ForeignFault(f"{part}/{row.handle}", "missing", "the index names it", effects.ARTIFACT_GONE)
    for artifact in sorted(set(held) - {row.handle for row in rows}):
        yield ForeignFault(f"{part}/{artifact}", "extra", "no line of the index names it", effects.NOT_READ)
    # Where two ranges have other pieces, what is missing was the same graph and compiled once.
    pieces = {row.piece for row in rows}
    for span in sorted({(row.low, row.high) for row in rows}):
        lacking = pieces - {row.piece for row in rows if (row.low, row.high) == span}
        if lacking:
            numbers = ", ".join(map(str, sorted(lacking)))
            notes.append(
                f"{name}: no line for piece {numbers} of {span[0]}..{span[1]}: equal graphs have one"
            )
    elsewhere = sorted({row.place for row in rows if not row.place.startswith(str(folder.path))})
    if elsewhere:
        ignored = all(row.adaptor != ADAPTOR for row in rows)
        effect = effects.PLACE_IGNORED if ignored else effects.PLACE_KEPT
        notes.append(f"{name}: made elsewhere, it names {elsewhere[0]}; {effect}")


def _adaptor_faults(folder: PieceFolder, rank: str, row: Row) -> Iterator[ForeignFault]:
    base = f"rank_{rank}/inductor_cache"
    graph = f"{base}/fxgraph/{row.handle[1:3]}/{row.handle}/"
    if not any(name.startswith(graph) for name in folder.files):
        yield ForeignFault(graph.rstrip("/"), "missing", "the index names it", effects.ARTIFACT_GONE)
    source = row.place.rpartition("/inductor_cache/")[2]
    if source != row.place and f"{base}/{source}" not in folder.files:
        yield ForeignFault(f"{base}/{source}", "missing", "the index names it", effects.ARTIFACT_GONE)


def _artifact_faults(folder: PieceFolder, notes: list[str]) -> Iterator[ForeignFault]:
    torch_keys: dict[str, str] = {}
    for rank, prefix in folder.parts:
        for artifact in folder.artifacts(rank, prefix):
            name = f"rank_{rank}/{prefix}/{artifact}"
            if name not in folder.files:
                kinds = {
                    part for file in folder.files if file.startswith(f"{name}/") for part in file.split("/")
                }
                if not {"fxgraph", "aotautograd"} <= kinds:
                    yield ForeignFault(name, "hollow", "no graph lies in it", effects.ARTIFACT_GONE)
                continue
            try:
                found = read_artifact(read_file(folder.path, name), name)
                torch_keys[found.torch_key] = name
                if set(found.items) != {"inductor", "aot_autograd"}:
                    kinds_held = ", ".join(found.items) or "nothing"
                    yield ForeignFault(name, "hollow", f"it holds {kinds_held}", effects.ARTIFACT_GONE)
                for pickled in (data for items in found.items.values() for data in items.values()):
                    read_compiled(pickled)
            except FileFault as fault:
                effect = effects.UNKNOWN_FORM if fault.kind == "version" else effects.ARTIFACT_DAMAGED
                yield ForeignFault(name, fault.kind, fault.detail, effect)
            except PickleFault as fault:
                yield ForeignFault(name, "unreadable", f"a pickle in it: {fault}", effects.ARTIFACT_GONE)
    if len(torch_keys) > 1:
        for name in sorted(torch_keys.values())[1:]:
            yield ForeignFault(
                name, "schema", "of another build of torch than the others", effects.ARTIFACT_TORCH
            )


def _aot_faults(unit: Unit, aot: AotFolder, notes: list[str]) -> Iterator[ForeignFault]:
    base = aot_base(aot)
    if aot.out_of_place:
        yield _moved(_in_its_place(aot.out_of_place), base)
        return
    for rank in aot.ranks:
        name = f"rank_{rank}/{MODEL_FILE}"
        found = aot.model(rank)
        if isinstance(found, FileFault):
            unknown = found.kind == "version"
            effect = effects.UNKNOWN_FORM if unknown else effects.MODEL_UNREADABLE
            if found.kind == "missing":
                effect = effects.MODEL_GONE
            yield ForeignFault(base + name, found.kind, found.detail, effect)
            continue
        yield from (_moved(fault, base) for fault in _model_faults(name, found, unit, notes))
    if not aot.ranks:
        yield ForeignFault(f"{base}rank_*/{MODEL_FILE}", "missing", "", effects.MODEL_GONE)
    for name in sorted(aot.files):
        if _DRAFT.fullmatch(name):
            notes.append(f"{base}{name}: left by a process that died while it wrote")
    yield from (_moved(fault, base) for fault in _inductor_faults(aot))


def _in_its_place(fault: FileFault) -> ForeignFault:
    effect = effects.LINK if fault.kind == "symlink" else effects.IN_THE_WAY
    return ForeignFault(fault.name, fault.kind, fault.detail, effect)


def aot_base(aot: AotFolder) -> str:
    return f"{AOT}/{aot.name[:10]}/"


def _moved(fault: ForeignFault, base: str) -> ForeignFault:
    return ForeignFault(base + fault.file, fault.kind, fault.detail, fault.effect)


def _model_faults(name: str, model: Model, unit: Unit, notes: list[str]) -> Iterator[ForeignFault]:
    if model.never_loads:
        yield ForeignFault(name, "hollow", "saved with the stock CPU platform", effects.MODEL_NEVER)
    wrong = [one for one in model.traced if not one.intact]
    if wrong:
        one = wrong[0]
        more = f" and {len(wrong) - 1} more functions" if len(wrong) > 1 else ""
        detail = f"the text of {one.module}, lines {one.first}-{one.last}{more} is not what was traced"
        yield ForeignFault(name, "digest", detail, effects.MODEL_SOURCE)
    factors = unit.pieces.known_factors if unit.pieces else None
    if factors and not wrong and all(code != factors.code for code in model.code_hashes()):
        detail = f"its sources do not give the code hash {factors.code[:10]} of {unit.id}"
        yield ForeignFault(name, "digest", detail, effects.MODEL_SOURCE)
    for piece, digest in model.artifacts.items():
        data = model.store.get(digest)
        if data is None:
            yield ForeignFault(name, "missing", f"the artifact of {piece}", effects.MODEL_UNREADABLE)
        elif hashlib.sha256(data).hexdigest() != digest:
            detail = f"the artifact of {piece} is not what its SHA-256 says{_which_text(data)}"
            yield ForeignFault(name, "digest", detail, effects.MODEL_ARTIFACT)
    if not model.inner:
        yield ForeignFault(name, "unreadable", "the graph in it cannot be read", effects.MODEL_UNREADABLE)
    elif model.mega and not model.artifacts:
        yield ForeignFault(name, "hollow", "no artifact lies in it", effects.MODEL_UNREADABLE)


def _which_text(data: bytes) -> str:
    """Return in words whether it is the generated source that was changed, where that can be read."""
    try:
        compiled = read_compiled(data)
    except PickleFault:
        return ": its pickle is broken"
    if not compiled.source or source_name(compiled.source.encode()) == compiled.source_name:
        return ""
    wrong = parses(compiled.source.encode())
    return f": its generated source is another one{f' and no Python ({wrong})' if wrong else ''}"
