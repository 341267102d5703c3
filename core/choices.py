"""Frozen choices between the configurations of kernels, as a file: made on a device, used where it is not.

One JSON object: `schema`, `target` (the facts of the device), `versions` (torch and Triton), `kernels`: by
identity, the digest of a kernel's source and of its configurations, its `name` and the chosen `config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from graphkiln.cache.factors.canonical import digest
from graphkiln.core.errors import BadChoices
from graphkiln.core.given import Given
from graphkiln.core.target.apart import identity

SCHEMA = 1
_FIELDS = ("schema", "target", "versions", "kernels")
_VERSIONS = ("torch", "triton")
_KERNEL = ("name", "config")
_MOST_BYTES = 16 << 20
_MOST_LETTERS = 1000


@dataclass(frozen=True)
class Choice:
    """One kernel's configuration: its compile-time parameters, `num_warps` and `num_stages`."""

    name: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Choices:
    """What a file says; `where` names it in errors."""

    where: str
    target: Mapping[str, Any]
    versions: Mapping[str, str]
    kernels: Mapping[str, Choice]

    @property
    def digest(self) -> str:
        """What two files that say the same have in common."""
        return digest(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the content of the file."""
        kernels = {
            name: {"name": one.name, "config": dict(one.config)} for name, one in sorted(self.kernels.items())
        }
        return {
            "schema": SCHEMA,
            "target": dict(self.target),
            "versions": dict(self.versions),
            "kernels": kernels,
        }

    def require_target(self, target: Mapping[str, Any], versions: Mapping[str, str]) -> None:
        """Raises BadChoices for choices that were made on another device, or with another torch or Triton."""
        if dict(self.target) != dict(target):
            names = sorted(
                name for name in {*self.target, *target} if self.target.get(name) != target.get(name)
            )
            raise BadChoices(
                self.where,
                f"was made on {identity(self.target)}, this is for {identity(target)} ({', '.join(names)})",
                "make it on such a device: graphkiln check --tune FILE",
            )
        for name in _VERSIONS:
            if self.versions[name] != versions[name]:
                raise BadChoices(
                    self.where,
                    f"was made with {name} {self.versions[name]}, this is {name} {versions[name]}",
                    f"use {name} {self.versions[name]}, or make it anew: graphkiln check --tune FILE",
                )

    def of(self, kernel: str, configs: Iterable[Mapping[str, Any]]) -> int | None:
        """Returns which of a kernel's configurations was chosen, None where there is no choice for it.

        Raises BadChoices for a choice that is none of them.
        """
        choice = self.kernels.get(kernel)
        if choice is None:
            return None
        there = [dict(config) for config in configs]
        if dict(choice.config) not in there:
            raise BadChoices(
                self.where,
                f"kernel {choice.name} ({kernel[:10]}) has no configuration {short(dict(choice.config))}",
                "make it anew: graphkiln check --tune FILE",
            )
        return there.index(dict(choice.config))

    def require_used(self, used: Iterable[str]) -> None:
        """Raises BadChoices, naming the first, where there are choices for kernels that were not compiled."""
        stray = sorted(set(self.kernels) - set(used))
        if stray:
            name, more = self.kernels[stray[0]].name, len(stray) - 1
            rest = f" and {more} more" if more else ""
            raise BadChoices(
                self.where,
                f"kernel {name} ({stray[0][:10]}){rest} is no kernel of this model as it is compiled now",
                "make it anew, or leave that kernel out of it",
            )


def read_choices(path: Path) -> Choices:
    """Returns what a file says. Raises BadChoices, one line, for what is no file of choices."""
    given = Given(f"choices {path}", BadChoices, "make it anew: graphkiln check --tune FILE")
    top = given.fields("the file", given.read(path, _MOST_BYTES), _FIELDS)
    given.need(top["schema"] == SCHEMA, f"has schema {short(top['schema'])}, this version reads {SCHEMA}")
    versions = given.fields("versions", top["versions"], _VERSIONS)
    for name, value in versions.items():
        given.need(isinstance(value, str), f"versions.{name} is {short(value)}, not a text")
    given.need(isinstance(top["target"], dict), "target is not an object")
    given.need(isinstance(top["kernels"], dict), "kernels is not an object")
    kernels = {name: _choice(given, name, value) for name, value in top["kernels"].items()}
    return Choices(given.where, top["target"], versions, kernels)


def _choice(given: Given, identity_of: str, value: Any) -> Choice:
    part = f"kernel {short(identity_of)}"
    row = given.fields(part, value, _KERNEL)
    named = isinstance(row["name"], str) and len(row["name"]) <= _MOST_LETTERS
    given.need(
        named, f"the name of {part} is {short(row['name'])}, not a text of up to {_MOST_LETTERS} letters"
    )
    config = row["config"]
    plain = isinstance(config, dict) and all(
        isinstance(one, (int, float, str, bool, type(None))) for one in config.values()
    )
    given.need(plain, f"the config of {part} is {short(config)}, not values by name")
    return Choice(row["name"], config)
