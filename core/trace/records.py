"""What a trace took for granted, checked once at load: records against the live model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.paths import path_text
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.observe import observe
from graphkiln.core.trace.paths import PathBroken, Walker

Record = dict[str, Any]


def check_records(
    records: Iterable[Record], module: torch.nn.Module, digests: CodeDigests
) -> list[Difference]:
    """Returns how the live module differs from what the records say."""
    walker = Walker(module)
    found: list[Difference] = []
    for record in records:
        name, then = str(record["path"]), record["value"]
        try:
            name = path_text(record["path"])
            value = walker.walk(record["path"])
            if record["kind"] == "same object":
                now: Any = value is walker.walk(record["other"])
            else:
                now = observe(record["kind"], value, digests, record.get("extra"))
        except PathBroken as broken:
            found.append(
                Difference("code", name, then, None, remedy=f"{broken.step} is gone", kind="removed")
            )
            continue
        except (Bypass, AttributeError, TypeError) as error:
            now = f"a {type(value).__name__} ({error})"
        if now != then:
            what = f"{name} {record['extra'] if isinstance(record.get('extra'), str) else ''}".strip()
            found.append(Difference("code", what, then, now, remedy=_remedy(record["kind"], name)))
    return found


def _remedy(kind: str, name: str) -> str:
    return f"set {name} back, or compile again" if kind == "constant" else "compile again"
