"""Environments as people have them: a process, the output of `env`, an env file, a Kubernetes pod spec."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphkiln.cache.errors import EnvironmentUnreadable

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SPEC = re.compile(r"^\s*(-\s+)?(apiVersion|kind|spec|containers|env|name):", re.MULTILINE)
# What a pod spec may say of another of its variables.
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_MOST_BYTES = 16 << 20
STDIN = "-"
_NOTHING = "it sets no variable"


@dataclass(frozen=True)
class Environment:
    """Variables of a start: `values` as texts, `unknown` names whose values are not told here.

    `what` says in words where they come from; `complete` is False where an image may set more of them;
    `root` is where its files are seen from here.
    """

    what: str
    values: Mapping[str, str]
    unknown: frozenset[str] = field(default_factory=frozenset)
    complete: bool = True
    root: str = ""

    def seen_from_here(self) -> dict[str, str]:
        """Return the variables that say where a cache lies, with paths as this process sees them."""
        here = {}
        for name in ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "HOME"):
            value = self.values.get(name, "")
            if value:
                inside = f"{self.root}{value}"
                here[name] = inside if self.root and Path(inside).is_dir() else value
        return here


def of_process(pid: int) -> Environment:
    """Return the environment with which a process was started; `EnvironmentUnreadable` where it is kept."""
    where = f"/proc/{pid}/environ"
    try:
        data = Path(where).read_bytes()
    except FileNotFoundError:
        raise EnvironmentUnreadable(f"process {pid}", "there is no such process") from None
    except OSError as error:
        raise EnvironmentUnreadable(f"process {pid}", (error.strerror or str(error)).lower()) from None
    values = _of_texts(data.decode("utf-8", "replace").split("\0"))
    if not values:
        raise EnvironmentUnreadable(f"process {pid}", _NOTHING)
    return Environment(f"process {pid}", values, root=f"/proc/{pid}/root")


def of_file(path: str, container: str | None = None) -> Environment:
    """Return the environment that a file holds, whatever of the known forms it has; `-` is stdin.

    `container` chooses one of a pod spec's. `EnvironmentUnreadable` for anything else.
    """
    try:
        # One byte more tells whether that is all of it.
        data = sys.stdin.buffer.read(_MOST_BYTES + 1) if path == STDIN else _read(path)
    except OSError as error:
        raise EnvironmentUnreadable(path, (error.strerror or str(error)).lower()) from None
    text, what = data.decode("utf-8", "replace"), "stdin" if path == STDIN else path
    if len(data) > _MOST_BYTES:
        raise EnvironmentUnreadable(what, f"it is larger than {_MOST_BYTES >> 20} MiB")
    if "\0" in text:
        return Environment(what, _of_ended(text, what))
    lines = {name: _unquoted(value) for name, value in _of_texts(_joined(text)).items()}
    if text.lstrip()[:1] in ("{", "[") or (not lines and _SPEC.search(text)):
        return _of_documents(what, list(_documents(text, what)), container)
    if not lines:
        nothing = "it holds neither NAME=VALUE lines nor a pod spec" if text.strip() else _NOTHING
        raise EnvironmentUnreadable(what, nothing)
    return Environment(what, lines)


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(_MOST_BYTES + 1)


def _of_ended(text: str, what: str) -> dict[str, str]:
    """Return the values of assignments that a NUL ends each; a binary file has NULs too, and other things."""
    texts = [one for one in text.split("\0") if one.strip()]
    if not texts:
        raise EnvironmentUnreadable(what, _NOTHING)
    # A shell's functions are handed on too, under names that no variable has.
    if not all(one.partition("=")[1] and one.partition("=")[0].isprintable() for one in texts):
        raise EnvironmentUnreadable(what, "it holds NULs, and between them what is no NAME=VALUE")
    return _of_texts(texts)


def _joined(text: str) -> Iterator[str]:
    """Yield the assignments of the output of `env`, in which a value may go on in the next lines."""
    current = ""
    for line in text.splitlines():
        if _LINE.fullmatch(line):
            if current:
                yield current
            current = line
        elif current and not line.startswith("#"):
            current += f"\n{line}"
    if current:
        yield current.rstrip("\n")


def _of_texts(texts: Iterable[str]) -> dict[str, str]:
    """Return the values of the assignments among some texts, each as it stands."""
    return {match[1]: match[2] for text in texts if (match := _LINE.fullmatch(text))}


def _unquoted(value: str) -> str:
    # In a file of lines quotes are for whoever reads it; where a NUL ends a value they are the value's own.
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _documents(text: str, what: str) -> Iterator[Any]:
    """Yield what JSON or YAML says; YAML is only read as plain values."""
    try:
        yield json.loads(text)
        return
    except ValueError:
        pass
    except RecursionError:
        raise EnvironmentUnreadable(what, "it is nested too deeply") from None
    try:
        import yaml
    except ImportError:
        raise EnvironmentUnreadable(what, "PyYAML is not installed; give it as JSON") from None
    try:
        yield from yaml.safe_load_all(text)
    except (yaml.YAMLError, RecursionError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EnvironmentUnreadable(what, f"no YAML: {line}") from None


def _of_documents(what: str, documents: list[Any], container: str | None) -> Environment:
    found = [one for document in documents for one in _containers(document)]
    if container is not None:
        found = [one for one in found if one.get("name") == container]
    if len(found) > 1:
        found = [one for one in found if _serves(one)] or found
    if len(found) > 1:
        names = ", ".join(str(one.get("name")) for one in found)
        raise EnvironmentUnreadable(what, f"it has the containers {names}: name one with --container")
    if found:
        name = found[0].get("name")
        named = f"container {name} of {what}" if name else what
        return _of_list(named, found[0].get("env") or [], bool(found[0].get("envFrom")))
    plain = documents[0] if len(documents) == 1 and container is None else None
    if isinstance(plain, list):
        return _of_list(what, plain, False)
    if isinstance(plain, dict) and all(
        isinstance(value, (str, int, float, bool)) for value in plain.values()
    ):
        return Environment(what, {str(name): _text(value) for name, value in plain.items()})
    reason = f"it has no container {container}" if container else "it holds no container and no env list"
    raise EnvironmentUnreadable(what, reason)


def _containers(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every container below a value, each object once: YAML can name one in many places."""
    pending, seen = [value], set()
    while pending:
        one = pending.pop(0)
        if not isinstance(one, (dict, list)) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            held = one.get("containers")
            yield from (item for item in held if isinstance(item, dict)) if isinstance(held, list) else ()
            pending += one.values()
        else:
            pending += one


def _serves(container: Mapping[str, Any]) -> bool:
    names = [str(one.get("name")) for one in container.get("env") or () if isinstance(one, dict)]
    words = [str(container.get("image")), str(container.get("name")), str(container.get("command"))]
    return any(name.startswith("VLLM_") for name in names) or any("vllm" in word for word in words)


def _of_list(what: str, items: list[Any], more: bool) -> Environment:
    values: dict[str, str] = {}
    unknown = set()
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise EnvironmentUnreadable(what, "an item of its env list has no name")
        if item.get("valueFrom") is not None:
            unknown.add(item["name"])
            continue
        text = _text(item.get("value", ""))
        values[item["name"]] = _REFERENCE.sub(lambda match: values.get(match[1], match[0]), text)
    return Environment(f"{what}, and what its envFrom adds" if more else what, values, frozenset(unknown),
                       complete=False)  # fmt: skip


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
