"""What an AOT file's header says against this start: judged before anything behind the header is read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from graphkiln.cache.factors.difference import Difference, differences
from graphkiln.cache.factors.functions import check_functions
from graphkiln.cache.factors.key import LOOKUP_FACTORS
from graphkiln.cache.factors.remedies import with_remedy
from graphkiln.cache.store.aot_header import AotHeader
from graphkiln.core.plan import Plan
from graphkiln.core.target.apart import apart
from graphkiln.core.target.cpu import cpu_features


def judge(header: AotHeader, plan: Plan) -> list[Difference]:
    """Returns why a start cannot use an AOT file, [] when its header leaves nothing to object to.

    Target, CPU and versions, then all that was asked for, then the source of the traced functions;
    stops after the first kind. A source that cannot be found or read is a difference too: whoever cannot
    be verified is not trusted.
    """
    for found in (_place(header, plan), _asked(header, plan)):
        reasons = list(found)
        if reasons:
            return reasons
    return check_functions(header.body["code"])


def _place(header: AotHeader, plan: Plan) -> Iterator[Difference]:
    """What it was compiled for, and with, against what is here."""
    target: Mapping[str, Any] = header.body["target"]
    versions: Mapping[str, str] = header.body["versions"]
    missing = sorted(set(target["features"]) - cpu_features()) if target["device"] == "cpu" else []
    if missing:
        wanted, without = ", ".join(sorted(target["features"])), f"without {', '.join(missing)}"
        yield Difference("compiler", "CPU features", wanted, without, remedy="compile for this CPU")
    here = compiler_versions(plan)
    recorded: Mapping[str, Any] = header.body["factors"]["compiler"]
    # By its facts: a device that was described and the same device here have names of their own.
    facts = {name: value for name, value in target.items() if name not in ("name", "features")}
    then = {
        "target": facts,
        "torch": versions["torch"],
        "python": ".".join(versions["python"].split(".")[:2]),
        **{name: recorded.get(name) for name in ("torch_sources", "triton") if name in here},
    }
    yield from apart(then, here)


def compiler_versions(plan: Plan) -> Mapping[str, Any]:
    """Returns what of this start's compiler factor says where it runs, also where it has no key."""
    if plan.factors is not None:
        return plan.factors.compiler
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"target": plan.target.as_factor(), "torch": str(torch.__version__), "python": python}


def _asked(header: AotHeader, plan: Plan) -> Iterator[Difference]:
    if header.lookup == plan.lookup:
        return
    if plan.factors is None:
        yield Difference("config", "key", header.short, None, remedy="see why this start has no key")
        return
    now = plan.factors.as_json()
    for name in LOOKUP_FACTORS:
        for found in differences(name, header.body["factors"][name], now[name]):
            yield with_remedy(found)
