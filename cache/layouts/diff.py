"""How two entries of foreign trees differ: causes first, and honest about what is not stored.

A factor whose hashes agree has no differences, whatever the files around it say. Where the hashes differ,
what could be recovered beside them is compared, and only what both sides hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphkiln.cache.factors.difference import Difference, Kind, differences
from graphkiln.cache.factors.key import FACTOR_NAMES
from graphkiln.cache.factors.remedies import with_remedy
from graphkiln.cache.inspect.causes import Cause
from graphkiln.cache.inspect.diff import DIFFERENT, OTHER_BUILD, SAME, UNKNOWN, EntryDiff, Side, piece_rows
from graphkiln.cache.inspect.texts import TextDiff, unified
from graphkiln.cache.layouts.found import ForeignAccount
from graphkiln.cache.layouts.vllm.env import SWITCHES, with_launch_remedy

HASH_ONLY = "hash (all that is stored)"
_RANKS = "--tensor-parallel-size {then}, or another way to {then} ranks"
# A word of torch's own settings: where one side does not say it, it has its default there.
_TORCH_SETTING = "settings.torch."


def diff_foreign(a: ForeignAccount, b: ForeignAccount, factor: str | None = None) -> EntryDiff:
    """Return how `b` differs from `a`; `factor` looks at that one alone."""
    names: tuple[str, ...] = FACTOR_NAMES if factor is None else (factor,)
    same = {name: _same(a, b, name) for name in names}
    if all(value is None for value in same.values()):
        names = tuple(name for name in names if name in a.factors and name in b.factors) or names
    graphs = tuple(_texts(a.graphs, b.graphs)) if factor in (None, "code") else ()
    pieces = piece_rows(a.pieces, b.pieces) if a.pieces and b.pieces else ()
    equal_build = bool(a.build) and a.build == b.build and not graphs
    found = [one for name in names if same[name] is False for one in _differences(a, b, name, equal_build)]
    build = tuple(differences("build", a.build, b.build)) if factor is None and a.build and b.build else ()
    modules = {
        one.name.removeprefix("file ") for one in found if one.factor == "code" and one.kind == "changed"
    }
    consequences = [Difference("build", f"graph {one.name}", "as in A", "another text") for one in graphs]
    return EntryDiff(
        _side(a), _side(b), _verdict(same, build), same,
        tuple(_causes(found, consequences if factor is None else [])), (), (),
        tuple(_texts(a.sources, b.sources, modules)), graphs,
        pieces if factor in (None, "code") else (), (), build if all(same.values()) else (),
        (), tuple(_notes(a, b, same, found)),
    )  # fmt: skip


def _side(found: ForeignAccount) -> Side:
    row = found.row
    return Side(row.id, row.key, str(row.path), row.model, row.created, None)


def _same(a: ForeignAccount, b: ForeignAccount, name: str) -> bool | None:
    """Say whether a factor agrees, None where that is not stored on both sides."""
    if name in a.hashes and name in b.hashes:
        return a.hashes[name] == b.hashes[name]
    if name == "code" and a.sources and b.sources:
        return dict(a.sources) == dict(b.sources)
    both = name in a.factors and name in b.factors
    return dict(a.factors[name]) == dict(b.factors[name]) if both and not (a.hashes or b.hashes) else None


def _verdict(same: Mapping[str, bool | None], build: Sequence[Difference]) -> str:
    if any(value is False for value in same.values()):
        return DIFFERENT
    if any(value is None for value in same.values()) and not any(same.values()):
        return UNKNOWN
    return OTHER_BUILD if build else SAME if all(same.values()) else UNKNOWN


def _differences(a: ForeignAccount, b: ForeignAccount, name: str, equal_build: bool) -> list[Difference]:
    """Return how one factor differs; the hash alone where nothing that is stored does."""
    if name == "code":
        found = list(_of_code(a, b))
    else:
        found = list(_of_values(name, a.factors.get(name) or {}, b.factors.get(name) or {}))
    found = [_with_remedy(one) for one in found]
    if not found:
        then, now = a.hashes.get(name), b.hashes.get(name)
        # Where graph and generated code are the same, it has changed neither.
        found = [Difference(name, HASH_ONLY, then, now, relevant=not equal_build)]
    return found


def _of_values(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for one in differences(name, a, b):
        absent = one.kind in ("added", "removed")
        if one.name.startswith(_TORCH_SETTING) and absent and _has_settings(a) and _has_settings(b):
            yield replace(one, then=one.then or "the default", now=one.now or "the default", kind="changed")
        elif not absent or name == "env":
            yield one


def _has_settings(values: Mapping[str, Any]) -> bool:
    settings = values.get("settings")
    return isinstance(settings, Mapping) and any(name.startswith("torch.") for name in settings)


def _of_code(a: ForeignAccount, b: ForeignAccount) -> Iterator[Difference]:
    """Yield the traced files that differ: another text, or traced on one side only."""
    before, after = (dict(one.sources) or dict.fromkeys(_files(one), "") for one in (a, b))
    if bool(a.sources) is not bool(b.sources):
        return
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            kind: Kind = "removed" if name in before else "added"
            then, now = ("traced", None) if kind == "removed" else (None, "traced")
            yield Difference("code", f"file {name}", then, now, remedy="compile again", kind=kind)
        elif before[name] != after[name]:
            remedy = f"restore {name}, or compile again"
            yield Difference("code", f"file {name}", "as in A", "another text", remedy=remedy)


def _files(found: ForeignAccount) -> list[str]:
    parts = (found.factors.get("code") or {}).values()
    return [str(name) for part in parts if isinstance(part, Mapping) for name in part.get("files", ())]


def _with_remedy(one: Difference) -> Difference:
    if one.factor == "env":
        return with_launch_remedy(one)
    if one.factor == "config" and one.name == "ranks":
        return replace(one, remedy=_RANKS.format(then=one.then))
    if one.factor == "config" and one.name in ("dtype", "max_num_batched_tokens"):
        return with_remedy(one)
    return one


def _causes(found: Sequence[Difference], consequences: Sequence[Difference]) -> Iterator[Cause]:
    """Yield the causes, what can change code first; what follows from one stands with it."""
    rest = list(found)
    groups: list[tuple[Difference, list[Difference]]] = []
    for one in sorted((one for one in found if _leads(one, found)), key=_order):
        groups.append((one, []))
        rest.remove(one)
    for one in [*rest, *consequences]:
        owner = next((group for group in groups if _explains(group[0], one)), None)
        if owner is None:
            groups.append((one, []))
        else:
            owner[1].append(one)
    yield from (Cause(one, tuple(follows)) for one, follows in groups)


def _leads(one: Difference, found: Iterable[Difference]) -> bool:
    """Say whether a difference can be the cause of others, or stands for itself."""
    names = {other.name for other in found if other.factor == "env"}
    if one.factor == "env":
        # Without a cache there is nothing to be kept ahead of time.
        follows = one.name in ("VLLM_USE_AOT_COMPILE", "VLLM_USE_MEGA_AOT_ARTIFACT")
        return not (follows and "VLLM_DISABLE_COMPILE_CACHE" in names)
    if one.factor == "config":
        return one.name in ("dtype", "max_num_batched_tokens", "ranks", "model.layers", HASH_ONLY)
    return one.factor == "code" and one.kind == "changed" and one.name.startswith("file ")


def _order(one: Difference) -> tuple[bool, int, str]:
    ranks = ("ranks", "dtype", "model.layers", "max_num_batched_tokens")
    kind = 0 if one.name in ranks else 1 if one.name in SWITCHES else 2
    return not one.relevant, kind, one.name


def _explains(cause: Difference, other: Difference) -> bool:
    if cause.factor == "env":
        disabled = cause.name == "VLLM_DISABLE_COMPILE_CACHE" and other.factor == "env"
        return disabled or (cause.name in SWITCHES and other.factor in ("compiler", "build"))
    if cause.name == "max_num_batched_tokens":
        return other.factor == "config"
    if cause.factor == "config" and cause.name != HASH_ONLY:
        return other.factor in ("config", "code", "build")
    return cause.factor == "code" and other.factor in ("code", "build")


def _texts(
    a: Mapping[str, str], b: Mapping[str, str], names: Iterable[str] | None = None
) -> Iterator[TextDiff]:
    """Yield the line diff of each named text that both sides hold and that is not the same."""
    wanted = set(a) & set(b) if names is None else set(names) & set(a) & set(b)
    for name in sorted(wanted):
        if a[name] != b[name]:
            yield TextDiff(name, unified(a[name], b[name], name))


def _notes(
    a: ForeignAccount, b: ForeignAccount, same: Mapping[str, bool | None], found: Sequence[Difference]
) -> Iterator[str]:
    only = {one.factor for one in found if one.name == HASH_ONLY}
    if "config" in only:
        yield (
            "the config differs in something that is not stored: dtype, ranges, ranks, layers and graph, as "
            "far as both hold them, agree; what is left is the model's name or path, max_model_len, "
            "max_num_seqs, the level, or another setting that leaves the graph alone"
        )
    elif same.get("config") is False:
        yield "more of the config may differ: only what shows in graph and artifacts is stored"
    if "code" in only:
        yield "which traced file differs is not stored on both sides"
    if "compiler" in only:
        yield "what of the compiler differs is not stored on both sides"
    for side, one in (("A", a), ("B", b)):
        if not one.pieces and one.row.layout == "vllm":
            yield f"{side} holds nothing compiled that can be read: pieces and builds are not compared"
        unstored = [name for name, value in same.items() if value is None and name not in one.hashes]
        if unstored and one.row.layout == "vllm":
            yield f"{side} stores no {', '.join(unstored)} factor: {one.row.fault or 'no short-hash folder'}"
