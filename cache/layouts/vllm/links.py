"""Which AOT folder belongs to which short-hash folder, and how that is known: no file says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphkiln.cache.layouts.vllm.factor_file import FactorFile
from graphkiln.cache.layouts.vllm.model import Model
from graphkiln.cache.layouts.vllm.scan import AotFolder, PieceFolder, VllmTree

# The name of an AOT folder holds the version of vLLM as text: these are tried.
VERSIONS = (
    "0.32.0", "0.32.0+cpu", "0.32.0+cu130", "0.32.0+cu129", "0.32.0+cu128", "0.32.1", "0.31.1", "0.31.0",
    "0.30.0", "0.33.0", "0.33.1",
)  # fmt: skip
MEGA = "VLLM_USE_MEGA_AOT_ARTIFACT"
AOT_ON = "VLLM_USE_AOT_COMPILE"


@dataclass(frozen=True)
class Unit:
    """A short-hash folder, an AOT folder, or both that belong together.

    `how` says in words how that is known, `certain` whether it is more than a guess, `version` which
    vLLM made it where that shows. `overwritten_by` is the short-hash folder whose AOT folder this one's
    was before it was overwritten.
    """

    pieces: PieceFolder | None
    aot: AotFolder | None
    how: str = ""
    certain: bool = True
    version: str = ""
    overwritten_by: str = ""

    @property
    def id(self) -> str:
        folder = self.pieces or self.aot
        assert folder is not None
        return folder.name[:10] if self.pieces is None else folder.name


def linked(tree: VllmTree) -> list[Unit]:
    """Return the units of a tree: every short-hash folder, then the AOT folders that belong to none."""
    units = {folder.name: Unit(folder, None) for folder in tree.pieces}
    alone: list[AotFolder] = []
    by_code: list[tuple[AotFolder, list[PieceFolder]]] = []
    wanted, tried = _by_code_hash(tree.pieces), dict[str, list[PieceFolder]]()
    for aot in tree.aots:
        if unit := _by_name(aot, tree.pieces):
            units[unit.id] = unit
        elif candidates := _by_code(aot, wanted, tried):
            by_code.append((aot, candidates))
        else:
            alone.append(aot)
    for unit in _by_time(by_code, {name for name, unit in units.items() if unit.aot}):
        units[unit.id] = unit
    left = [
        unit.pieces for unit in units.values() if unit.pieces and not unit.aot and _wants_aot(unit.pieces)
    ]
    taken = {unit.aot.name for unit in units.values() if unit.aot}
    alone += [aot for aot, _ in by_code if aot.name not in taken]
    if len(left) == 1 and len(alone) == 1 and _could_be(left[0], alone[0]):
        aot = alone.pop()
        how = "a guess: nothing else is left that could belong to it"
        units[left[0].name] = Unit(left[0], aot, how, certain=False)
    marked = [_overwritten(unit, list(units.values())) for unit in units.values()]
    return [*marked, *(Unit(None, aot) for aot in alone)]


def _by_name(aot: AotFolder, folders: Sequence[PieceFolder]) -> Unit | None:
    """Return the unit whose AOT name follows from the factor file, which is so where mega AOT is off."""
    model = aot.summary
    if model is None or model.mega:
        return None
    for folder in folders:
        factors = folder.known_factors
        for version in VERSIONS if factors else ():
            assert factors is not None
            if factors.aot_name(version, model.qualified, model.first_line) == aot.name:
                how = f"the name follows from the factor file and vLLM {version}"
                return Unit(folder, aot, how, version=version)
    return None


def _by_code_hash(folders: Sequence[PieceFolder]) -> dict[str, list[PieceFolder]]:
    """Return the short-hash folders that an AOT folder can belong to, by their code hash."""
    found: dict[str, list[PieceFolder]] = {}
    for folder in folders:
        if (factors := folder.known_factors) and _wants_aot(folder):
            found.setdefault(factors.code, []).append(folder)
    return found


def _by_code(
    aot: AotFolder, wanted: Mapping[str, list[PieceFolder]], tried: dict[str, list[PieceFolder]]
) -> list[PieceFolder]:
    """Return the short-hash folders whose code hash the texts in `model` give.

    `tried` are those of the folders before by their likeliest hash: equal ones have all others alike too.
    """
    model = aot.summary
    if model is None or not wanted:
        return []
    if model.code in wanted:
        return wanted[model.code]
    if model.code not in tried:
        # The file is read again for the rarer ways of counting packages.
        whole = next((one for rank in aot.ranks if isinstance(one := aot.model(rank), Model)), None)
        hashes = whole.code_hashes() if whole else ()
        tried[model.code] = next((wanted[code] for code in hashes if code in wanted), [])
    return tried[model.code]


def _by_time(
    candidates: Iterable[tuple[AotFolder, Sequence[PieceFolder]]], taken: set[str]
) -> Iterable[Unit]:
    """Yield units of those with one code: the factor file is written shortly before `model` is."""
    groups: dict[str, tuple[list[AotFolder], Sequence[PieceFolder]]] = {}
    for aot, folders in candidates:
        groups.setdefault(folders[0].name, ([], folders))[0].append(aot)
    for aots, folders in groups.values():
        waiting = sorted((one for one in folders if one.name not in taken), key=_begun, reverse=True)
        open_starts: list[PieceFolder] = []
        pairs: list[tuple[PieceFolder, AotFolder]] = []
        for aot in sorted(aots, key=_begun):
            while waiting and _begun(waiting[-1]) <= _begun(aot):
                open_starts.append(waiting.pop())
            if open_starts:
                pairs.append((open_starts.pop(), aot))
        if not pairs and len(folders) == 1:
            # A copy may have lost its times; a single candidate is the one all the same.
            pairs = [(folder, min(aots, key=_begun)) for folder in waiting]
        for folder, aot in pairs:
            how = _how(folder, aot, len(folders), len(aots))
            yield Unit(folder, aot, how, certain=len(folders) == len(aots) == 1)


def _how(folder: PieceFolder, aot: AotFolder, folders: int, aots: int) -> str:
    if folders == aots == 1:
        return "the sources in model give its code hash"
    many = f"{folders} entries have" if folders > 1 else f"{aots} AOT folders have"
    gap = _begun(aot) - _begun(folder)
    return f"a guess: {many} its code, and this one was begun {gap:.0f} s before model"


def _begun(folder: PieceFolder | AotFolder) -> float:
    return folder.made or 0.0


def _wants_aot(folder: PieceFolder) -> bool:
    """Whether a start with these factors keeps what it loads in an AOT folder with mega artifacts."""
    factors = folder.known_factors
    return factors is None or bool(factors.env.get(MEGA, True) and factors.env.get(AOT_ON, True))


def _could_be(folder: PieceFolder, aot: AotFolder) -> bool:
    """Whether nothing speaks against it: the folder was begun before the AOT folder's newest file."""
    newest = max((stat.mtime for stat in aot.files.values()), default=0.0)
    # Not its factor file alone: that may have been edited since.
    begun = min((stat.mtime for stat in folder.files.values()), default=0.0)
    return not newest or begun <= newest


def _overwritten(unit: Unit, units: Sequence[Unit]) -> Unit:
    """Return the unit, marked where another one of the same AOT name holds the AOT folder now.

    An AOT folder's name does not depend on source text, so an edit gives a second short-hash folder only.
    """
    factors = unit.pieces.known_factors if unit.pieces and not unit.aot else None
    if factors is None:
        return unit
    for other in units:
        theirs = other.pieces.known_factors if other.pieces and other.aot else None
        if theirs and _but_code(theirs) == _but_code(factors) and theirs.code != factors.code:
            return Unit(unit.pieces, None, overwritten_by=other.id)
    return unit


def _but_code(factors: FactorFile) -> tuple[str, ...]:
    return tuple(value for name, value in factors.hashes.items() if name != "code")
