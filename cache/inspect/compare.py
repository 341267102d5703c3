"""What differs between two sets of factors, each difference with its remedy, causes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphkiln.cache.factors.difference import Difference, differences
from graphkiln.cache.factors.key import FACTOR_NAMES
from graphkiln.cache.factors.remedies import with_remedy
from graphkiln.cache.factors.traced import code_differences
from graphkiln.cache.inspect.causes import FOLLOWS_TOKENS, Cause, grouped, package_differences

Versions = Mapping[str, str]
# What kernels of attention are compiled for, which lie in an entry for a GPU alone.
_ATTENDED_BY = ("block_size", "max_num_seqs")


def factor_differences(
    then: Mapping[str, Any], now: Mapping[str, Any], names: Sequence[str] = FACTOR_NAMES
) -> list[Difference]:
    """Return every difference of the named factors; one whose value is None (not known) is left out."""
    found: list[Difference] = []
    for name in names:
        before, after = then.get(name), now.get(name)
        if before is None or after is None:
            continue
        if name == "code":
            found += code_differences(before, after)
        else:
            rows = [with_remedy(difference) for difference in differences(name, before, after)]
            if name == "config" and (_own_code(before) or _own_code(after)):
                rows = [_of_own_code(row, before, after) for row in rows]
            elif name == "config" and (_for_gpu(then) or _for_gpu(now)):
                rows = [replace(row, relevant=True) if row.name in _ATTENDED_BY else row for row in rows]
            found += rows
    return found


def _of_own_code(row: Difference, then: Mapping[str, Any], now: Mapping[str, Any]) -> Difference:
    """Return a difference as it is for a model with code of its own, which has no limit of its own."""
    lengths = [(config.get("max_model_len"), config.get("max_num_batched_tokens")) for config in (then, now)]
    if row.name == "max_model_len" and all(length == tokens for length, tokens in lengths):
        return replace(row, remedy=FOLLOWS_TOKENS)
    return replace(row, relevant=True)


def _for_gpu(factors: Mapping[str, Any]) -> bool:
    target = (factors.get("compiler") or {}).get("target")
    return isinstance(target, Mapping) and target.get("device") == "cuda"


def _own_code(config: Mapping[str, Any]) -> bool:
    """Say whether the model is built by code of the user's, which may look at the whole deployment."""
    model = config.get("model")
    return isinstance(model, Mapping) and bool({"factory", "class"} & set(model))


def causes_of(
    found: Sequence[Difference], then: Versions | None = None, now: Versions | None = None
) -> tuple[Cause, ...]:
    """Return differences grouped under their causes; versions name a package that brought them about."""
    packages = package_differences(found, then or {}, now or {}) if then and now else []
    return grouped([*packages, *found])
