"""Which entries a start here can hit no more: `python -m graphkiln.core.stale`, asked as JSON on stdin.

    {"factors": ["code", "compiler"], "entries": {"<id>": "<folder>"}}

One line of JSON goes to stdout: {"<id>": {"stale": true | false, "why": "..."}}. `why` without `stale` says
that it cannot be told. An entry for another target is not stale: it never was for this machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from graphkiln.cache.errors import CacheError, EntryDamaged
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.inspect.compare import causes_of, factor_differences
from graphkiln.cache.store.entries import Entry
from graphkiln.core.compile.compiler_factor import compiler_values
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CoreError
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.plan import make_plan
from graphkiln.core.publication import versions
from graphkiln.core.target.torch_build import build_for
from graphkiln.core.trace.code import check_source

WIRING = "wiring.json"
# What of a configuration in effect decides the rest of it again.
_DECIDED = ("mode", "backend", "splitting_ops", "use_inductor_graph_partition", "inductor_compile_config")


class Untold(Exception):
    """Whether an entry is stale cannot be told, because of the text."""


def find_stale(entries: Mapping[str, str], factors: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns for each entry whether one of the factors keeps a start here from hitting it, and why."""
    return {name: _answer(Path(path), factors) for name, path in entries.items()}


def _answer(path: Path, factors: Sequence[str]) -> dict[str, Any]:
    open_questions: list[str] = []
    try:
        entry = Entry(path)
        for factor in factors:
            try:
                found = _FACTORS[factor](entry)
            except Untold as untold:
                open_questions.append(f"{factor}: {untold}")
                continue
            if found:
                cause = causes_of(found, entry.header.get("versions"), versions())[0].difference
                return {"stale": True, "why": f"{cause.factor}: {_text(cause)}"}
    except CacheError as error:
        return {"stale": False, "why": str(error)}
    return {"stale": False, "why": "; ".join(open_questions)}


def _text(difference: Difference) -> str:
    then, now = (str(value)[:40] for value in (difference.then, difference.now))
    return f"{difference.name} was {then}, is {now}"


def _compiler(entry: Entry) -> list[Difference]:
    then = _factor(entry, "compiler")
    order = then.get("passes", {}).get("order", ())
    user = tuple(name for name in order if ":" in name)
    on_gpu = then.get("target", {}).get("device") == "cuda"
    now = {**_compiler_now("cuda" if on_gpu else "cpu", user), "target": then.get("target")}
    if on_gpu:
        # What the CPU build of torch compiled, it compiled in the name of another build.
        now["torch"] = build_for(str(then.get("torch")))
    if "triton" not in then or now.get("triton", {}).get("version") is None:
        # Where there is no Triton, nothing is known about a machine that has one.
        then, now = ({k: v for k, v in values.items() if k != "triton"} for values in (then, now))
    return factor_differences({"compiler": then}, {"compiler": now}, ["compiler"])


@cache
def _compiler_now(kind: Literal["cpu", "cuda"], user_passes: tuple[str, ...]) -> dict[str, Any]:
    return compiler_values(kind, Pipeline(user=user_passes))


def _code(entry: Entry) -> list[Difference]:
    """How recorded functions and variables differ; sources that are not here tell nothing."""
    parts = _factor(entry, "code")
    rank = entry.ranks_expected[0]
    unknown = ""
    for prefix, part in parts.items():
        try:
            sources = entry.read_json(rank, prefix, WIRING)["sources"]
            found = check_source(part, sources)
        except (EntryDamaged, KeyError, TypeError, AttributeError):
            raise Untold("what was traced is not recorded as this version does it") from None
        certain = [difference for difference in found if difference.kind != "cannot verify"]
        if certain:
            return certain
        unknown = unknown or (f"{found[0].name} is not here" if found else "")
    if unknown:
        raise Untold(unknown)
    return []


def _config(entry: Entry) -> list[Difference]:
    """How the configuration of the same request would come out now."""
    then = _factor(entry, "config")
    fields = set(_config_now(Deployment("preset:llama"), CompilationConfig()))
    other = sorted(set(then) ^ fields)
    if other:
        return [Difference("config", other[0], then.get(other[0]), "this version decides otherwise")]
    try:
        asked = Deployment(**entry.header["requested"]["deployment"])
        own = then["compilation"]
        config = CompilationConfig.from_user({name: own[name] for name in _DECIDED})
        now = _config_now(asked, config)
    except (CoreError, KeyError, TypeError, ValueError):
        raise Untold("an entry keeps no path to its model") from None
    return factor_differences({"config": then}, {"config": now}, ["config"])


def _config_now(deployment: Deployment, config: CompilationConfig) -> dict[str, Any]:
    plan = make_plan(deployment, config)
    if plan.factors is None:
        raise Untold(str(plan.refusal))
    found: dict[str, Any] = plan.factors.as_json()["config"]
    return found


def _factor(entry: Entry, name: str) -> dict[str, Any]:
    found: dict[str, Any] = entry.factors().as_json()[name]
    return found


_FACTORS: dict[str, Callable[[Entry], list[Difference]]] = {
    "compiler": _compiler,
    "code": _code,
    "config": _config,
}


def main() -> None:
    """Answers one question."""
    asked = json.load(sys.stdin)
    answer = find_stale(asked["entries"], asked["factors"])
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
