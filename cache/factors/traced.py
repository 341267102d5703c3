"""Named differences between two code factors, named as a start names them when it checks a live model.

MODULE:FUNCTION        a traced function, by the digest of its syntax tree
environment NAME       a variable that was read while tracing
class, class C, C.m    the class of the model, a class in it, a method that a class really has
parameter NAME FIELD   a parameter or buffer
torch state NAME       torch's global state
attention layer NAME F what a model declares of one of its attention layers
op NAME                a custom op's schema and fake implementation
anything else          a path to a value that the trace specialised on
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkiln.cache.factors.difference import Difference, Kind, differences
from graphkiln.cache.factors.paths import path_text

_AGAIN = "compile again"
# The columns of a row in the recorded table of parameters.
PARAMETER_FIELDS = ("kind", "name", "dtype", "shape", "stride", "offset", "tied to", "persistent")


def code_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return how two code factors differ, part by part; names carry the part only where it says something."""
    found: list[Difference] = []
    for prefix in sorted({*then, *now}):
        if prefix not in then or prefix not in now:
            found.append(_whole(f"part {prefix}", prefix in then, prefix in now, "in the model", _AGAIN))
        elif not isinstance(then[prefix], Mapping) or not isinstance(now[prefix], Mapping):
            found += differences("code", then, now)
        else:
            found += _part(then[prefix], now[prefix])
    return found


def _part(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    yield from _environment(_mapping(then, "environment"), _mapping(now, "environment"))
    yield from _functions(_mapping(then, "functions"), _mapping(now, "functions"))
    if then.get("class") != now.get("class"):
        yield Difference("code", "class", then.get("class"), now.get("class"), remedy=_AGAIN)
    yield from _named(
        "torch state ", _mapping(then, "ambient"), _mapping(now, "ambient"), "restore torch's {}"
    )
    yield from _parameters(then.get("parameters") or (), now.get("parameters") or ())
    yield from _classes(_mapping(then, "classes"), _mapping(now, "classes"))
    yield from _named("op ", _mapping(then, "ops"), _mapping(now, "ops"), "register the op {} as it was")
    kernels = _mapping(then, "kernels"), _mapping(now, "kernels")
    yield from _named("kernel ", *kernels, "restore the Triton kernel {}")
    yield from layer_differences(_mapping(then, "attention"), _mapping(now, "attention"))
    yield from _values(then.get("values") or (), now.get("values") or ())
    if then.get("smallest") != now.get("smallest"):
        yield Difference(
            "code", "smallest token count", then.get("smallest"), now.get("smallest"), remedy=_AGAIN
        )


def _environment(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted({*then, *now}):
        # Unset and never read are told apart: the second is what a trace does, not what a person set.
        if name not in then or name not in now:
            yield _whole(f"environment {name}", name in then, name in now, "read while tracing", _AGAIN)
        elif then[name] != now[name]:
            remedy = f"unset {name}" if then[name] is None else f"set {name}={then[name]}"
            yield Difference("code", f"environment {name}", then[name], now[name], remedy=remedy)


def _functions(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for module in sorted({*then, *now}):
        before, after = _mapping(then, module), _mapping(now, module)
        for name in sorted({*before, *after}):
            one, other = before.get(name), after.get(name)
            if one != other:
                kind: Kind = "added" if one is None else "removed" if other is None else "changed"
                remedy = f"restore {name} in {module}, or compile again" if kind == "changed" else _AGAIN
                yield Difference("code", f"{module}:{name}", one, other, remedy=remedy, kind=kind)


def _named(start: str, then: Mapping[str, Any], now: Mapping[str, Any], remedy: str) -> Iterator[Difference]:
    for name in sorted({*then, *now}):
        if not _same(then.get(name), now.get(name)):
            text = f"{remedy.format(name)}, or compile again"
            yield Difference("code", start + name, then.get(name), now.get(name), remedy=text)


def _parameters(then: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> Iterator[Difference]:
    before, after = ({str(row[1]): row for row in rows} for rows in (then, now))
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            yield _whole(f"parameter {name}", one is not None, other is not None, "in the model", _AGAIN)
            continue
        for title, was, is_now in zip(PARAMETER_FIELDS, one, other, strict=False):
            if not _same(was, is_now):
                yield Difference("code", f"parameter {name} {title}", was, is_now, remedy=_AGAIN)


def _classes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for kind in sorted({*then, *now}):
        if kind not in then or kind not in now:
            yield _whole(f"class {kind}", kind in then, kind in now, "in the model", _AGAIN)
            continue
        before, after = _mapping(then, kind), _mapping(now, kind)
        for name in sorted({*before, *after}):
            if not _same(before.get(name), after.get(name)):
                remedy = f"put the original {name} back on {kind}, or compile again"
                yield Difference("code", f"{kind}.{name}", before.get(name), after.get(name), remedy=remedy)


def layer_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield how attention layers, by name, were declared otherwise, fact by fact."""
    for name in sorted({*then, *now}):
        before, after = _mapping(then, name), _mapping(now, name)
        for fact in dict.fromkeys([*before, *after]):
            if not _same(before.get(fact), after.get(fact)):
                title = f"attention layer {name} {fact}"
                yield Difference("code", title, before.get(fact), after.get(fact), remedy=_AGAIN)


def _values(then: Sequence[Any], now: Sequence[Any]) -> Iterator[Difference]:
    before, after = _by_path(then), _by_path(now)
    for key in sorted({*before, *after}):
        one, other = before.get(key, {}), after.get(key, {})
        if one == other:
            continue
        record = next(iter((one or other).values()))
        name, kind = record_text(record), record["kind"]
        remedy = f"set {name} back, or compile again" if kind == "constant" else _AGAIN
        if not one or not other:
            yield _whole(name, bool(one), bool(other), "relied on", _AGAIN)
        else:
            yield Difference("code", name, _observed(one), _observed(other), remedy=remedy)


def _by_path(records: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the records of each path; those of one path differ in value or in the layers they are for."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        about = {name: record.get(name) for name in ("kind", "path", "extra", "other")}
        key = json.dumps(about, sort_keys=True, default=list)
        found.setdefault(key, {})[json.dumps(record, sort_keys=True, default=list)] = record
    return found


def _observed(records: Mapping[str, Any]) -> Any:
    values = [record["value"] for record in records.values()]
    return plain_constant(values[0]) if len(values) == 1 else [plain_constant(value) for value in values]


def plain_constant(value: Any) -> Any:
    """Return what a recorded constant says, where it is one with a plain form; else the record itself."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] in ("i", "s", "b", "torch", "type"):
        return int(value[1]) if value[0] == "i" else value[1]
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == "f":
        return float.fromhex(value[1])
    if isinstance(value, (list, tuple)) and len(value) == 1 and value[0] == "none":
        return None
    return value


def record_text(record: Mapping[str, Any]) -> str:
    """Return a record's path as a person would write it, with what of the object was looked at."""
    text = path_text(record["path"])
    extra = record.get("extra")
    return f"{text} {extra}" if isinstance(extra, str) else text


def _whole(name: str, was: bool, is_now: bool, text: str, remedy: str) -> Difference:
    kind: Kind = "removed" if was else "added"
    return Difference("code", name, text if was else None, text if is_now else None, remedy=remedy, kind=kind)


def _same(one: Any, other: Any) -> bool:
    # Not `==`, for which 1, 1.0 and True are one value.
    return json.dumps(one, sort_keys=True, default=list) == json.dumps(other, sort_keys=True, default=list)


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}
