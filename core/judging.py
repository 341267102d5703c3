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
from graphkiln.core.target.cpu import cpu_features
from graphkiln.core.target.named import Target

_AGAIN = "compile again"


def judge(header: AotHeader, plan: Plan) -> list[Difference]:
    """Returns why a start cannot use an AOT file, [] when its header leaves nothing to object to.

    Versions, then target and CPU, then all that was asked for, then the source of the traced functions;
    stops after the first kind. A source that cannot be found or read is a difference too: whoever cannot
    be verified is not trusted.
    """
    target = target_reasons(header.body["target"], plan.target)
    for found in (_versions(header), target, _asked(header, plan)):
        reasons = list(found)
        if reasons:
            return reasons
    return check_functions(header.body["code"])


def _versions(header: AotHeader) -> Iterator[Difference]:
    then, now = header.body["versions"]["torch"], str(torch.__version__)
    if then != now:
        remedy = f"install torch {then}, or {_AGAIN}"
        yield Difference("compiler", "torch version", then, now, remedy=remedy)
    python = ".".join(header.body["versions"]["python"].split(".")[:2])
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != here:
        yield Difference(
            "compiler", "python version", python, here, remedy=f"use Python {python}, or {_AGAIN}"
        )


def target_reasons(stored: Mapping[str, Any], target: Target) -> Iterator[Difference]:
    """Yields why what was compiled for a `stored` target, as a header tells it, is not for this one."""
    missing = sorted(set(stored["features"]) - cpu_features()) if stored["device"] == "cpu" else []
    if missing:
        then, now = ", ".join(sorted(stored["features"])), f"without {', '.join(missing)}"
        yield Difference("compiler", "CPU features", then, now, remedy="compile for this CPU")
        return
    # By its facts: a device that was described and the same device here have names of their own.
    facts = {name: value for name, value in stored.items() if name not in ("name", "features")}
    if differences("compiler", facts, target.as_factor()):
        remedy = f"ask for --target {stored['name']}"
        yield Difference("compiler", "target", stored["name"], target.name, remedy=remedy)


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
