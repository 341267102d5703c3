"""Descriptions of GPUs as files: what of a device reaches generated code, and what it was seen with.

One JSON object: `schema`, `device` (properties), `versions` (what the device was seen with), `attention`
(which kernel torch took for `scaled_dot_product_attention` on it), `origin` ("captured" on a device, or
"derived" from public data sheets), `note`. Serial numbers, bus ids and clock readings are never in one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, get_args

from graphkiln.core.errors import BadTarget
from graphkiln.core.given import Given
from graphkiln.core.target.cpu import cpu_target

SCHEMA = 2
Origin = Literal["captured", "derived"]
# The kernels that torch chooses among for `scaled_dot_product_attention`.
KERNELS = ("math", "flash", "efficient", "cudnn")
# What a description can need, many times over; a file above it is something else.
_MOST_BYTES = 1 << 20
_MOST_COUNT = 2**63 - 1
# The one property that may be nothing: 9.0.
_MAY_BE_ZERO = ("device.minor",)
_MOST_ROWS = 1000
_MOST_LETTERS = {"note": 4096, "": 256}
_REMEDY = "write it anew with `graphkiln target describe` on the device"


@dataclass(frozen=True)
class DeviceProperties:
    """What a driver says of a GPU, as far as it decides code or limits. Sizes are in bytes."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    warp_size: int
    regs_per_multiprocessor: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    total_memory: int


@dataclass(frozen=True)
class Versions:
    """What a device was seen with.

    `python` is the minor; `triton` and its assembler's `ptxas` are None where it is not installed;
    `torch_sources` is the digest of torch's Python files that goes into keys, None where it is not known.
    """

    torch: str
    torch_sources: str | None
    cuda: str
    triton: str | None
    ptxas: str | None
    python: str


@dataclass(frozen=True)
class Description:
    """One GPU as a target. `title` is what it is called on the command line.

    `attention` has a row for each kind of call that was asked about, as `attention.kind` names it; None
    where the device was not asked.
    """

    title: str
    device: DeviceProperties
    versions: Versions
    origin: Origin
    note: str = ""
    attention: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the content of its file."""
        return {
            "schema": SCHEMA,
            "device": asdict(self.device),
            "versions": asdict(self.versions),
            "attention": None if self.attention is None else dict(self.attention),
            "origin": self.origin,
            "note": self.note,
        }


def built_in() -> dict[str, Path]:
    """Returns the files of the built-in descriptions by title."""
    return {file.stem: file for file in sorted((Path(__file__).parent / "devices").glob("*.json"))}


def require_target(name: str) -> None:
    """Raises BadTarget for a name that is no target's; imports no torch."""
    if name == "cpu" or name.startswith("cpu:"):
        cpu_target(name)
    elif is_description(name):
        find_description(name)


def is_description(name: str | None) -> bool:
    """Whether a target's name is that of a description: a device that is likely not here."""
    return name is not None and name not in ("cpu", "cuda") and not name.startswith("cpu:")


def find_description(name: str) -> Description:
    """Returns the description called `name`, or in the file of that path. Raises BadTarget."""
    files = built_in()
    if not name.strip():
        raise BadTarget("target", "the name is empty", f"use {', '.join(files)}, or a description's file")
    if name in files:
        return read_description(files[name])
    path = Path(name)
    # Not by Path's own: a text that is too long to be a path is no file, and no error of this machine.
    if path.suffix == ".json" or os.path.isfile(path):
        return read_description(path)
    raise BadTarget(
        f"target {name:.200}",
        "there is no such target",
        f"use cpu, cuda, {', '.join(files)}, or a description's file",
    )


def read_description(path: Path) -> Description:
    """Returns the description in a file.

    Raises BadTarget, one line that names the file and the field, for a file that cannot be read, an
    unknown or a missing field, and a value of another kind.
    """
    where = f"target {path}" if path.parent != Path(__file__).parent / "devices" else f"target {path.stem}"
    content = Given(where, BadTarget, _REMEDY).read(path, _MOST_BYTES)
    return parse_description(where, path.stem, content)


def parse_description(where: str, title: str, content: Any) -> Description:
    """Returns the description that `content` is; `where` names it in errors."""
    if isinstance(content, Mapping) and content.get("schema", SCHEMA) != SCHEMA:
        raise BadTarget(where, f"has schema {short(content['schema'])}, this version reads {SCHEMA}", _REMEDY)
    names = ("schema", "device", "versions", "attention", "origin", "note")
    top = Given(where, BadTarget, _REMEDY).fields("the description", content, names)
    if top["origin"] not in get_args(Origin):
        raise BadTarget(where, f"origin is {short(top['origin'])}, not captured or derived", _REMEDY)
    if not isinstance(top["note"], str):
        raise BadTarget(where, "note is not a text", _REMEDY)
    _bounded(where, "note", top["note"])
    return Description(
        title,
        DeviceProperties(**_typed(where, "device", top["device"], DeviceProperties)),
        Versions(**_typed(where, "versions", top["versions"], Versions)),
        top["origin"],
        top["note"],
        _rows(where, top["attention"]),
    )


def _rows(where: str, content: Any) -> dict[str, str] | None:
    if content is None:
        return None
    if not isinstance(content, Mapping):
        raise BadTarget(where, "attention is not an object", _REMEDY)
    if len(content) > _MOST_ROWS:
        raise BadTarget(where, f"attention has {len(content)} rows, at most {_MOST_ROWS} are read", _REMEDY)
    for kind, kernel in content.items():
        if kernel not in KERNELS:
            raise BadTarget(
                where, f"attention {short(kind)} is {short(kernel)}, not {', '.join(KERNELS)}", _REMEDY
            )
    return dict(content)


def _typed(where: str, part: str, content: Any, kind: type) -> dict[str, Any]:
    kinds = {field.name: str(field.type) for field in fields(kind)}
    values = Given(where, BadTarget, _REMEDY).fields(part, content, tuple(kinds))
    for name, value in values.items():
        wanted = kinds[name]
        good = isinstance(value, str) if wanted.startswith("str") else _is_count(value)
        if not good and not (value is None and wanted.endswith("None")):
            raise BadTarget(
                where,
                f"{part}.{name} is {short(value)}, not {'a text' if wanted != 'int' else 'a count'}",
                _REMEDY,
            )
        _bounded(where, f"{part}.{name}", value)
    return values


def _bounded(where: str, name: str, value: str | int | None) -> None:
    """Raises BadTarget for a text or a count that no device has."""
    if isinstance(value, str):
        most = _MOST_LETTERS.get(name, _MOST_LETTERS[""])
        if len(value) > most:
            raise BadTarget(where, f"{name} has {len(value)} letters, at most {most} are read", _REMEDY)
        if not value.strip() and name != "note":
            raise BadTarget(where, f"{name} is empty", _REMEDY)
    elif value is not None and value > _MOST_COUNT:
        raise BadTarget(where, f"{name} is {short(value)}, at most {_MOST_COUNT} is read", _REMEDY)
    elif value == 0 and name not in _MAY_BE_ZERO:
        raise BadTarget(where, f"{name} is 0, which no device has", _REMEDY)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
