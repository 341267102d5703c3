"""`rank_*/model`: the file of one rank in an AOT folder, a pickle that is only looked into."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphkiln.cache.layouts.files import FileFault
from graphkiln.cache.layouts.pickled_values import attributes_of, nested, plain_text
from graphkiln.cache.layouts.pickles import PickleFault, read_pickle

MODEL_FILE = "model"
# The opcode that ends every pickle.
STOP = b"."
# What torch's ahead-of-time file holds in the releases that this reader was tried with.
NEEDED = {"original_code", "source_info", "compiled_fn", "system_info", "backend_name"}
# The stock CPU platform compiles once per start through this backend, whose file vLLM cannot load again.
NEVER_LOADS = "inductor"
# The class of what holds the artifacts: it is named in the pickle inside when there are any.
_ARTIFACTS = b"StandaloneCompiledArtifacts"
_MOST_AMBIGUOUS = 5
_MOST_RECORDS = 20_000


@dataclass(frozen=True)
class Traced:
    """One inlined function: its module, lines from first to last (both in it), and whether they are whole."""

    module: str
    first: int
    last: int
    intact: bool


@dataclass(frozen=True)
class Summary:
    """What is kept of a `model` after it was looked into; `code` is the likeliest code hash."""

    qualified: str
    first_line: int
    device: str
    versions: Mapping[str, str]
    never_loads: bool
    mega: bool
    code: str

    @property
    def model_class(self) -> str:
        return self.qualified.rpartition(".")[0]


@dataclass(frozen=True)
class Model:
    """What one `model` file says; `outer` is its pickle as plain values."""

    outer: Mapping[str, Any]

    @property
    def _code(self) -> Mapping[str, Any]:
        return attributes_of(self.outer.get("original_code"))

    @property
    def qualified(self) -> str:
        """The qualified name of the traced function: `LlamaModel.forward`."""
        return plain_text(self._code.get("co_qualname"))

    @property
    def model_class(self) -> str:
        return self.qualified.rpartition(".")[0]

    @property
    def first_line(self) -> int:
        line = self._code.get("co_firstlineno")
        return line if isinstance(line, int) else 0

    @property
    def file(self) -> str:
        return plain_text(self._code.get("co_filename"))

    @property
    def device(self) -> str:
        return plain_text(self.outer.get("device_type"))

    @property
    def never_loads(self) -> bool:
        """Whether vLLM would refuse it at every start."""
        return self.outer.get("backend_name") == NEVER_LOADS

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions and the name of the GPU, by name; what is None there is left out."""
        system = attributes_of(self.outer.get("system_info"))
        names = {"python_version": "python", "torch_version": "torch", "toolkit_version": "toolkit",
                 "triton_version": "triton", "gpu_name": "gpu"}  # fmt: skip
        return {
            names[name]: text
            for name, value in system.items()
            if name in names and (text := plain_text(value))
        }

    @cached_property
    def sources(self) -> dict[str, str]:
        """The text of every traced file by the name of its module."""
        return {
            module: text if isinstance(text, str) else str(text, "utf-8", "surrogatepass")
            for module, text in self._contents.items()
        }

    @cached_property
    def _contents(self) -> dict[str, str | memoryview]:
        return {plain_text(one["module"]): one["content"] for one in self._inlined()}

    @cached_property
    def traced(self) -> tuple[Traced, ...]:
        """Every inlined function, its lines digested again."""
        lines = {module: text.splitlines(keepends=True) for module, text in self.sources.items()}
        found = {
            (plain_text(one["module"]), one["firstlineno"], one["lastlineno"]): one.get("checksum")
            for one in self._inlined()
        }
        # The last line that is recorded is the one after the function's end.
        return tuple(
            Traced(module, first, last - 1, _sha256("".join(lines[module][first - 1 : last - 1])) == checksum)
            for (module, first, last), checksum in sorted(found.items())
        )

    def _inlined(self) -> Iterator[Mapping[str, Any]]:
        records = attributes_of(self.outer.get("source_info")).get("inlined_sources")
        for record in itertools.islice(records if isinstance(records, (set, list)) else (), _MOST_RECORDS):
            one = attributes_of(record)
            numbers = (one.get("firstlineno"), one.get("lastlineno"))
            if isinstance(one.get("content"), (str, memoryview)) and all(
                isinstance(number, int) for number in numbers
            ):
                yield one

    def code_hashes(self, known_files: Collection[str] = ()) -> Iterator[str]:
        """Yield what the code hash can be: a module may be `x.py` or `x/__init__.py`, which is not stored.

        The likely one comes first; `known_files` are paths of which it is known. Files count by their
        absolute paths, whose prefix the traced function gives.
        """
        prefix, modules = self._prefix, sorted(self._contents)
        if not prefix or not modules:
            return
        packages = {
            module
            for module in modules
            if any(name.startswith(f"{module}.") for name in modules)
            or f"{prefix}/{module.replace('.', '/')}/__init__.py" in known_files
        }
        # One whose submodules were not traced looks like a module; it lies near the top.
        loose = sorted(set(modules) - packages, key=lambda module: (module.count("."), module))
        for extra in itertools.islice(_subsets(loose[:_MOST_AMBIGUOUS]), 1 << _MOST_AMBIGUOUS):
            yield self._code_hash(prefix, packages | set(extra))

    @property
    def _prefix(self) -> str:
        """The folder of installed packages: where the top package of a traced module lies."""
        parts = self.file.split("/")
        tops = {module.partition(".")[0] for module in self._contents}
        own = next((at for at in range(len(parts) - 1, 0, -1) if parts[at] in tops), 0)
        return "/".join(parts[:own])

    def _code_hash(self, prefix: str, packages: set[str]) -> str:
        files = sorted(
            (f"{prefix}/{module.replace('.', '/')}" + ("/__init__.py" if module in packages else ".py"), text)
            for module, text in self._contents.items()
        )
        digest = hashlib.sha256()
        for number, (path, text) in enumerate(files):
            digest.update(f"{chr(10) if number else ''}{path}\n".encode())
            digest.update(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        return digest.hexdigest()

    @cached_property
    def inner(self) -> Mapping[str, Any]:
        """The pickle inside that holds graph and artifacts; empty where there is none that can be read."""
        compiled = self.outer.get("compiled_fn")
        data = next((part for part in nested(compiled) if isinstance(part, bytes)), b"")
        try:
            found = read_pickle(data) if data else {}
        except PickleFault:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def prefix(self) -> str:
        return plain_text(self.inner.get("prefix"))

    @property
    def submodules(self) -> tuple[str, ...]:
        names = self.inner.get("submod_names")
        return tuple(map(plain_text, names)) if isinstance(names, list) else ()

    @cached_property
    def artifacts(self) -> dict[str, str]:
        """The digest of the artifact of each piece and range, `submod_0_(1, 512)`; none with mega AOT off."""
        held = self._artifact_state("submodule_bytes")
        return {plain_text(name): plain_text(digest) for name, digest in held.items()}

    @cached_property
    def store(self) -> dict[str, bytes]:
        """The bytes of each artifact by the digest under which they are stored."""
        held = self._artifact_state("submodule_bytes_store")
        return {plain_text(digest): data for digest, data in held.items() if isinstance(data, bytes)}

    @property
    def mega(self) -> bool:
        """Whether it holds its artifacts itself, seen without taking the pickle inside apart."""
        parts = nested(self.outer.get("compiled_fn"))
        # Behind a view lies the whole file, in which the name stands nowhere else.
        wholes = (part.obj if isinstance(part, memoryview) else part for part in parts)
        return any(_ARTIFACTS in whole for whole in wholes if isinstance(whole, bytes))

    def summary(self) -> Summary:
        """Return what a list of entries needs: the rest may be hundreds of megabytes."""
        return Summary(
            self.qualified, self.first_line, self.device, dict(self.versions), self.never_loads, self.mega,
            next(self.code_hashes(), ""),
        )  # fmt: skip

    def _artifact_state(self, name: str) -> Mapping[str, Any]:
        found = attributes_of(self.inner.get("standalone_compile_artifacts")).get(name)
        return found if isinstance(found, dict) else {}


def read_model(data: bytes, name: str = MODEL_FILE, *, views: bool = False) -> Model:
    """Return what a `model` file says; with `views` as much as its summary needs.

    `FileFault` of kind unreadable for a pickle that is not whole, of kind version for one that holds other
    things.
    """
    if not data:
        raise FileFault(name, "unreadable", "empty")
    try:
        outer = read_pickle(data, views=views)
    except PickleFault as fault:
        raise FileFault(name, "unreadable", f"pickle {fault}") from None
    if not isinstance(outer, dict) or not set(outer) >= NEEDED:
        held = sorted(map(plain_text, outer)) if isinstance(outer, dict) else [type(outer).__name__]
        raise FileFault(name, "version", f"a pickle of {', '.join(held)[:200] or 'nothing'}")
    return Model(outer)


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
