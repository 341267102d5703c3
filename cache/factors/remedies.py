"""What each fact of a factor can do to generated code, and what to type to have it as it was.

One table: a factor, a pattern for the fact's dotted name, whether it can change generated code, and
the remedy made from the value that is wanted. The first row that fits holds.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.env import VARIABLES

Remedy: TypeAlias = Callable[[Difference, "re.Match[str]"], str]

# Builds of torch that have an index of their own.
_TORCH_BUILD = re.compile(r"(cpu|cu\d+|xpu|rocm[\d.]+)")


@dataclass(frozen=True)
class Row:
    """One kind of fact: `name` is a regular expression for the whole dotted name inside `factor`."""

    factor: str
    name: str
    remedy: Remedy
    relevant: bool = True


def with_remedy(difference: Difference) -> Difference:
    """Return the difference with its remedy and relevance from the table; one that has a remedy keeps it.

    The remedy brings back `then`: in a comparison of two entries the first one's value, in an
    explanation the entry's.
    """
    if difference.remedy:
        return difference
    for row in TABLE:
        match = re.fullmatch(row.name, difference.name) if row.factor == difference.factor else None
        if match is not None:
            remedy = row.remedy(difference, match)
            return replace(difference, relevant=difference.relevant and row.relevant, remedy=remedy)
    return difference


def variable(difference: Difference, match: re.Match[str]) -> str:
    """Return how to give an environment variable its earlier value."""
    name, value = match["name"], difference.then
    registered = VARIABLES.get(name)
    if difference.kind == "added" or value is None or (registered and value == registered.default):
        return f"unset {name}"
    text = str(int(value)) if isinstance(value, bool) else str(value)
    return f"set {name}={shlex.quote(text) if text else text}"


def option(difference: Difference, match: re.Match[str]) -> str:
    name = "--" + match[0].replace("_", "-")
    return f"leave out {name}" if difference.then is None else f"{name} {difference.then}"


def deployment_field(difference: Difference, match: re.Match[str]) -> str:
    return f"deploy with {match[0]}={difference.then}"


def compilation_field(difference: Difference, match: re.Match[str]) -> str:
    return setting(f"-cc.{match['field']}", difference)


def setting(name: str, difference: Difference) -> str:
    """Return `name=value` as the command line takes it, or to leave it out where it was not there."""
    if difference.kind == "added":
        return f"leave out {name}"
    value = difference.then
    text = value if isinstance(value, str) and not is_json(value) else json.dumps(plain(value))
    return f"{name}={shlex.quote(text)}"


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def model_field(difference: Difference, match: re.Match[str]) -> str:
    field = match["field"]
    if difference.kind == "added":
        return f"serve the model whose config.json has no {field}"
    return f"serve the model whose config.json has {field} = {json.dumps(difference.then, default=list)}"


def torch_version(difference: Difference, match: re.Match[str]) -> str:
    public, _, build = str(difference.then).partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{build}" if _TORCH_BUILD.fullmatch(build) else ""
    return f"pip install torch=={public}{index}"


def torch_option(difference: Difference, match: re.Match[str]) -> str:
    name = f"torch._{match['module']}.config.{match['option']}"
    if difference.kind == "added":
        return f"leave {name} as it is by default"
    return f"set {name} = {plain(difference.then)!r}"


def says(text: str) -> Remedy:
    """Return a remedy that is `text`, `{then}` standing for the wanted value."""
    return lambda difference, match: text.format(then=difference.then, **match.groupdict())


TABLE = (
    Row("env", r"(?P<name>\w+)", variable),
    Row("config", r"dtype|max_num_batched_tokens|max_model_len", option),
    # Both lay out the KV cache, which traced code sees through an opaque op only. What attention itself is
    # compiled for is another matter, and one of GPUs.
    Row("config", r"max_num_seqs|block_size", option, relevant=False),
    Row("config", r"\w+_parallel_size|enable_lora|num_speculative_tokens", deployment_field),
    Row("config", r"compilation\.(?P<field>.+)", compilation_field),
    Row("config", r"model\.(factory|class)", says("serve {then}")),
    Row("config", r"model\.(?P<field>.+)", model_field),
    Row("compiler", r"torch", torch_version),
    Row("compiler", r"torch_sources", says("reinstall torch: its own Python files are not the same")),
    Row("compiler", r"python", says("run Python {then}")),
    Row("compiler", r"(?P<module>inductor|functorch)\.environment\.(?P<name>\w+)", variable),
    Row("compiler", r"(?P<module>inductor|functorch)\.changed\.(?P<option>.+)", torch_option),
    Row("compiler", r"pipeline\..+", says("use the graphkiln that the entry was compiled with")),
    Row("compiler", r"target\.isa", says("--target cpu:{then}")),
    Row("compiler", r"target\.device", says("--target {then}")),
    Row("compiler", r"target\.(?P<field>\w+)", says("use a machine whose {field} is {then}")),
)  # fmt: skip
