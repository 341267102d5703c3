"""What was compiled for another target, told from values alone: no artifact is opened to find that out.

Both sides are compiler factors, as an entry records them and as a start has them. What sets two targets
apart is the device (by name, capability, number of SMs, or instruction set), what else of it decides
code, and what it is used with: toolkit, torch, Triton, the minor version of Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphkiln.cache.factors.difference import Difference, differences

# What `identity` says of a target, and so is not named a second time.
_NAMED = {
    "cuda": ("device", "gpu", "major", "minor", "multi_processor_count"),
    "cpu": ("device", "arch", "isa", "march"),
}
# Facts of the compiler factor that belong to where code runs; anything else is a setting of the start.
_PLACE = ("target", "torch", "torch_sources", "python", "triton")
_AGAIN = "compile again"


def identity(target: Mapping[str, Any]) -> str:
    """Returns a target's factor as a person knows it: `NVIDIA H200 (9.0, 132 SMs)`, `cpu:avx2`."""
    if target.get("device") == "cpu":
        return f"cpu:{target.get('isa')}"
    capability = f"{target.get('major')}.{target.get('minor')}"
    return f"{target.get('gpu')} ({capability}, {target.get('multi_processor_count')} SMs)"


def apart(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Returns where two compiler factors differ by their targets and what these are used with, [0] first."""
    before, here = then.get("target") or {}, now.get("target") or {}
    found = list(_devices(before, here))
    if then.get("torch") != now.get("torch"):
        remedy = f"install torch {then.get('torch')}"
        found.append(_fact("torch version", then.get("torch"), now.get("torch"), remedy))
    elif then.get("torch_sources") != now.get("torch_sources"):
        found.append(_fact("torch files", _short(then), _short(now), "reinstall torch"))
    if then.get("python") != now.get("python"):
        remedy = f"use Python {then.get('python')}"
        found.append(_fact("python version", then.get("python"), now.get("python"), remedy))
    if before.get("device") == here.get("device") == "cuda":
        found += _tritons(then.get("triton") or {}, now.get("triton") or {})
    return tuple(found)


def only_apart(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Returns what `apart` does where the factors differ in nothing else, () elsewhere."""
    rest = [{name: value for name, value in one.items() if name not in _PLACE} for one in (then, now)]
    if (then.get("target") or {}).get("device") != (now.get("target") or {}).get("device"):
        # More of our own modules decide what is compiled for a GPU.
        shared = set.intersection(*(set(one.get("pipeline") or ()) for one in rest))
        rest = [{**one, "pipeline": {name: one["pipeline"][name] for name in shared}} for one in rest]
    return () if list(differences("compiler", *rest)) else apart(then, now)


def sentence(short: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns how the entry `short` and a start are apart, by their compiler factors, as one line."""
    found = [one for one in apart(then, now) if one.name != "target"]
    was = ", ".join(clause(one.name, one.then) for one in found)
    here = ", ".join(clause(one.name, one.now) for one in found)
    if not found:
        return f"entry {short} is for {identity(then['target'])}; this start is for {identity(now['target'])}"
    return (
        f"entry {short} is for {identity(then['target'])} with {was}; "
        f"this start is for {identity(now['target'])} with {here}"
    )


def clause(name: str, value: Any) -> str:
    """Returns one side of a difference as a part of a sentence: a target by itself, a fact by its name."""
    if name == "target":
        return str(value)
    return f"{name.removeprefix('target.').removesuffix(' version').replace('python', 'Python')} {value}"


def _devices(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    if identity(then) != identity(now):
        on_cpu = then.get("device") == "cpu"
        remedy = f"--target {identity(then)}" if on_cpu else "serve it on that device"
        yield _fact("target", identity(then), identity(now), f"{remedy}, or compile for this one")
    # What else another device has follows from its name; its toolkit does not.
    if then.get("device") != now.get("device"):
        return
    for one in differences("compiler", then, now):
        if one.name == "toolkit" or not _follows(one.name, then, now):
            name = one.name if one.name == "toolkit" else f"target.{one.name}"
            yield _fact(name, one.then, one.now, _AGAIN)


def _tritons(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    if then.get("version") != now.get("version"):
        remedy = f"install triton=={then.get('version')}"
        yield _fact("triton version", then.get("version"), now.get("version"), remedy)
    elif list(differences("compiler", then, now)):
        first = differences("compiler", then, now)[0]
        yield _fact(f"triton.{first.name}", first.then, first.now, _AGAIN)


def _fact(name: str, then: Any, now: Any, remedy: str) -> Difference:
    more = "" if remedy.endswith((_AGAIN, "this one")) else f", or {_AGAIN}"
    return Difference("compiler", name, then, now, remedy=remedy + more)


def _short(factor: Mapping[str, Any]) -> str:
    return str(factor.get("torch_sources"))[:10]


def _follows(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return identity(then) != identity(now) or name in _NAMED.get(str(then.get("device")), ())
