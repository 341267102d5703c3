"""Whether a wiring makes sense in itself, seen before anything of it is run.

Digests say that a wiring is what was written. That it can be run is another question: a register that
nothing has filled, or a piece that is not there, must end a load and never a call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

_DOOR_ROWS = ({"name", "dtype", "device", "shape"}, {"name", "members"}, {"name", "constant"})


class Unsound(Exception):
    """A wiring makes no sense, because of the text."""


def require_sound(wiring: Mapping[str, Any], ops: Collection[str]) -> None:
    """Raises Unsound unless a wiring can be run. `ops` are those that its graph called, by name."""
    try:
        _check(wiring, ops)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unsound(f"{type(error).__name__}: {error}") from error


def _check(wiring: Mapping[str, Any], ops: Collection[str]) -> None:
    ranges = _ranges(wiring)
    count = _pieces(wiring, ranges)
    arguments = _door(wiring["door"])
    filled = {register: True for register, _ in enumerate(wiring["inputs"])}
    for spec in wiring["inputs"]:
        _need(sum(kind in spec for kind in ("parameter", "path", "tokens", "argument")) == 1, "input")
        if "argument" in spec:
            _need(_is_index(spec["argument"], len(arguments)), "input: no such argument")
            members = arguments[spec["argument"]].get("members")
            names = None if members is None else [row["name"] for row in members]
            _need((spec.get("member") in names) if names else "member" not in spec, "input: no such member")
    for number, step in enumerate(wiring["steps"]):
        where = f"step {number}"
        _need(sum(kind in step for kind in ("piece", "item", "op")) == 1, where)
        for register in _used(step):
            _need(filled.get(register) is True, f"{where}: register {register!r} holds nothing")
        if "piece" in step:
            _need(_is_index(step["piece"], count), f"{where}: no piece {step['piece']!r}")
        if "op" in step:
            namespace = str(step["op"]).partition("::")[0]
            known = step["op"] in ops or namespace in ("aten", "prims", "prim")
            _need(known, f"{where}: the op {step['op']!r} is not one that was traced")
        for register in step["outs"]:
            _need(
                type(register) is int and register not in filled, f"{where}: register {register!r} is taken"
            )
            filled[register] = True
        for register in step.get("free", ()):
            _need(filled.get(register) is True, f"{where}: register {register!r} holds nothing")
            filled[register] = False
    for register in _registers(wiring["outputs"]):
        _need(filled.get(register) is True, f"outputs: register {register!r} holds nothing")
    _need(
        type(wiring["registers"]) is int
        and wiring["registers"] == len(filled)
        and (min(filled, default=0), max(filled, default=-1)) == (0, len(filled) - 1),
        "registers: not as many as are used",
    )
    _structure(wiring["structure"], len(wiring["outputs"]), {row["name"] for row in arguments})


def _ranges(wiring: Mapping[str, Any]) -> list[tuple[int, int]]:
    ranges = [(start, end) for start, end in wiring["ranges"]]
    _need(bool(ranges) and len(set(ranges)) == len(ranges), "ranges")
    _need(all(type(end) is type(start) is int and 1 <= start <= end for start, end in ranges), "ranges")
    return ranges


def _pieces(wiring: Mapping[str, Any], ranges: Sequence[tuple[int, int]]) -> int:
    """Returns how many pieces every range has: all of them the same ones, in the same order."""
    by_range: dict[tuple[int, int], list[Any]] = {found: [] for found in ranges}
    for piece in wiring["pieces"]:
        by_range[tuple(piece["range"])].append((piece["piece"], piece["fingerprint"]))
    first = by_range[ranges[0]]
    _need(bool(first), "pieces: there are none")
    _need([number for number, _ in first] == list(range(len(first))), "pieces: not counted from 0")
    _need(all(found == first for found in by_range.values()), "pieces: not the same for every range")
    return len(first)


def _door(door: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    arguments: Sequence[Mapping[str, Any]] = door["arguments"]
    smallest, largest = door["smallest"], door["largest"]
    _need(type(smallest) is type(largest) is int and 0 <= smallest <= largest, "door: token counts")
    for row in arguments:
        rows = row.get("members", [row])
        _need(set(row) in _DOOR_ROWS and isinstance(row["name"], str), "door: argument")
        for inner in rows:
            if "shape" in inner:
                _need(
                    all(size is None or (type(size) is int and size >= 0) for size in inner["shape"]),
                    "door: shape",
                )
    return arguments


def _structure(structure: Any, outputs: int, arguments: Collection[str]) -> None:
    kind, content = structure
    if kind == "out":
        _need(_is_index(content, outputs), "structure: no such output")
    elif kind == "argument":
        _need(content in arguments, "structure: no such argument")
    elif kind in ("tuple", "list"):
        for item in content:
            _structure(item, outputs, arguments)
    elif kind != "constant":
        for item in content.values():
            _structure(item, outputs, arguments)


def _used(step: Mapping[str, Any]) -> Iterator[int]:
    yield from _registers(step.get("args", ()))
    yield from _registers([step["item"]] if "item" in step else ())
    yield from _registers(list(step.get("kwargs", {}).values()))


def _registers(values: Sequence[Any]) -> Iterator[int]:
    for kind, content in values:
        if kind == "r":
            yield content
        elif kind == "l":
            yield from _registers(content)
        else:
            _need(kind == "c", f"a value of kind {kind!r}")


def _is_index(value: Any, count: int) -> bool:
    return type(value) is int and 0 <= value < count


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise Unsound(what)
