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
from graphkiln.cache.layouts.spans import Span, joined
from graphkiln.cache.layouts.vllm.code import Code

MODEL_FILE = "model"
# The opcode that ends every pickle.
STOP = b"."
# What torch's ahead-of-time file holds in the releases that this reader was tried with.
NEEDED = {"original_code", "source_info", "compiled_fn", "system_info", "backend_name"}
# The stock CPU platform compiles once per start through this backend, whose file vLLM cannot load again.
NEVER_LOADS = "inductor"
# Under which name in the pickle inside the artifacts are held, if there are any, and by which class.
_HOLDER, _ARTIFACTS = "standalone_compile_artifacts", "StandaloneCompiledArtifacts"
_MOST_RECORDS = 20_000
# So much of what was read is kept to compare other files with.
_MOST_KEPT = 16 << 20


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
            module: text if isinstance(text, str) else str(text.read(), "utf-8", "surrogatepass")
            for module, text in self._contents.items()
        }

    @cached_property
    def _contents(self) -> dict[str, str | Span]:
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
            if isinstance(one.get("content"), (str, Span)) and all(
                isinstance(number, int) for number in numbers
            ):
                yield one

    def code_hashes(self, known_files: Collection[str] = ()) -> Iterator[str]:
        """Yield what the code hash can be, the likely one first; `known_files` are paths of traced files."""
        return Code(self.file, self._contents).hashes(known_files)

    @cached_property
    def inner(self) -> Mapping[str, Any]:
        """The pickle inside that holds graph and artifacts; empty where there is none that can be read."""
        try:
            found = read_pickle(self._inner_bytes)
        except PickleFault:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def _inner_bytes(self) -> bytes | Span:
        parts = nested(self.outer.get("compiled_fn"))
        return next((part for part in parts if isinstance(part, (bytes, Span))), b"")

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
        """Whether it holds its artifacts itself; where the pickle inside is damaged, what its bytes name."""
        if self.inner:
            return getattr(self.inner.get(_HOLDER), "name", "").endswith(_ARTIFACTS)
        whole = self._inner_bytes
        return _ARTIFACTS.encode() in (whole if isinstance(whole, bytes) else whole.read())

    def summary(self) -> Summary:
        """Return what a list of entries needs: the rest may be hundreds of megabytes."""
        return Summary(
            self.qualified, self.first_line, self.device, dict(self.versions), self.never_loads, self.mega,
            next(self.code_hashes(), ""),
        )  # fmt: skip

    def _artifact_state(self, name: str) -> Mapping[str, Any]:
        found = attributes_of(self.inner.get(_HOLDER)).get(name)
        return found if isinstance(found, dict) else {}


def read_model(source: bytes | Span, name: str = MODEL_FILE) -> Model:
    """Return what a `model` file says; of a `Span` large parts are read when they are asked for.

    `FileFault` of kind unreadable for a pickle that is not whole, of kind version for one that holds other
    things.
    """
    if not len(source):
        raise FileFault(name, "unreadable", "empty")
    try:
        outer = read_pickle(source)
    except PickleFault as fault:
        raise FileFault(name, "unreadable", f"pickle {fault}") from None
    if not isinstance(outer, dict) or not set(outer) >= NEEDED:
        held = sorted(map(plain_text, outer)) if isinstance(outer, dict) else [type(outer).__name__]
        raise FileFault(name, "version", f"a pickle of {', '.join(held)[:200] or 'nothing'}")
    return Model(outer)


class SeenModels:
    """What many `model` files say in short, each compared with those that were read before.

    What is read of a file decides what is found in it: of a copy the same places hold the same bytes, and
    to compare them is faster than to follow them again.
    """

    def __init__(self) -> None:
        self._seen: dict[int, list[tuple[list[tuple[int, bytes]], Summary]]] = {}
        self._kept = 0

    def summary(self, whole: Span, name: str = MODEL_FILE) -> Summary:
        """Return what a list needs of the `model` in an open file; `FileFault` as in `read_model`."""
        same_size = self._seen.setdefault(len(whole), [])
        for reads, summary in same_size:
            if whole.file.holds(reads):
                return summary
        found = read_model(whole, name).summary()
        size = sum(len(data) for _, data in whole.file.reads)
        if self._kept + size <= _MOST_KEPT:
            self._kept += size
            same_size.append((joined(whole.file.reads), found))
        return found


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
