"""Running a sealed piece: no Dynamo, no AOTAutograd, no Inductor, no compiler.

What stands here is what a wrapper expects to find around it. Nothing is read from disk but through
`read`, which hands out bytes whose digests were checked, and `path`, which names a checked file.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from graphkiln.core.compile.sealed_triton import SealedTriton
from graphkiln.core.compile.tensors import unpack_tensors

FORMAT = 2
# What Inductor took for granted of the addresses of its inputs.
_ALIGNMENT = 16

# The generated bindings read the address of torch's data-pointer getter from this variable.
_POINTER_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"


class ArtifactFiles(Protocol):
    """An artifact whose files are handed out only after their digests matched."""

    def read(self, name: str) -> bytes: ...

    def path(self, name: str) -> Path: ...


class SealedPiece:
    """A compiled piece, ready to be called with its inputs in order; returns its outputs as a list."""

    def __init__(
        self,
        fingerprint: str,
        call: Callable[[list[Any]], Sequence[Any]],
        num_outputs: int,
        aligned: Sequence[int] = (),
        mutated: Sequence[int] = (),
        partitions: list[Callable[[list[Any]], Sequence[Any]]] | None = None,
        triton: Sequence[SealedTriton] = (),
    ) -> None:
        """`partitions` is the list that `call` itself takes partitions from, `triton` are its kernels."""
        self.triton = tuple(triton)
        self.fingerprint = fingerprint
        self.partitions = [] if partitions is None else partitions
        self._call = call
        self.num_outputs = num_outputs
        self._aligned = tuple(aligned)
        self._mutated = frozenset(mutated)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Runs the piece. `inputs` is emptied, so that each input can be freed at its last use."""
        for index in self._aligned:
            if inputs[index].data_ptr() % _ALIGNMENT:
                return self._realigned(inputs)
        return self._call(inputs)

    def _realigned(self, inputs: list[Any]) -> Sequence[Any]:
        """Runs the piece on copies of the inputs that do not lie where its kernels expect them."""
        written: list[tuple[Any, Any]] = []
        for index in self._aligned:
            given = inputs[index]
            if given.data_ptr() % _ALIGNMENT:
                inputs[index] = torch.empty_strided(
                    given.shape, given.stride(), dtype=given.dtype, device=given.device
                ).copy_(given)
                if index in self._mutated:
                    written.append((given, inputs[index]))
        outputs = self._call(inputs)
        for given, copied in written:
            given.copy_(copied)
        return outputs


def load_piece(files: ArtifactFiles, device: int = 0) -> SealedPiece:
    """Returns the piece that an artifact holds; kernels for a GPU are loaded for the device of that index.

    Raises ValueError for an unknown format and ImportError when a kernel cannot be mapped (a
    `noexec` mount, a library built for another Python).
    """
    piece = read_piece(files.read("piece.json"))
    triton: list[SealedTriton] = []

    def sealed_triton(name: str) -> SealedTriton:
        triton.append(SealedTriton(name, piece["triton"][name], files.path, device))
        return triton[-1]

    namespace: dict[str, Any] = {
        "torch": torch,
        "__name__": f"graphkiln_piece_{piece['fingerprint'][:10]}",
        "sealed_kernel": lambda name: _load_kernel(name, files.path(f"kernels/{name}.so")),
        "sealed_triton": sealed_triton,
        "sealed_device": device,
        "extern_kernels": types.SimpleNamespace(
            **{name: resolve(path) for name, path in piece["extern_kernels"].items()}
        ),
    }
    for name, path in piece["imports"].items():
        namespace[name] = resolve(path)
    if piece["constants"]:
        constants = unpack_tensors(files.read("constants.safetensors"))
        for name, kind in piece["constants"].items():
            namespace[name] = (
                constants[name] if kind == "cpu" else constants[name].to(torch.device(kind, device))
            )
    exec(compile(files.read("wrapper.py"), f"<piece {piece['fingerprint'][:10]}>", "exec"), namespace)
    return SealedPiece(
        piece["fingerprint"],
        namespace["call"],
        piece["num_outputs"],
        piece["aligned"],
        piece["mutated"],
        getattr(namespace.get("runner"), "partitions", None),
        triton,
    )


_kernels: dict[str, Any] = {}


def _load_kernel(name: str, path: Path) -> Any:
    """Returns the kernel function of a library, each file mapped once a process.

    By path and not by name alone: the name is the digest of the source, and one source built with
    other flags (fast arithmetic, another instruction set) is another kernel.
    """
    if str(path) not in _kernels:
        before = os.environ.get(_POINTER_VARIABLE)
        guards: Any = torch._C._dynamo.guards
        os.environ[_POINTER_VARIABLE] = str(guards._torchinductor_pyobject_tensor_data_ptr)
        try:
            # The last part of the module's name selects `PyInit_kernel`.
            module_name = f"graphkiln_{name}.kernel"
            loader = importlib.machinery.ExtensionFileLoader(module_name, str(path))
            spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            _kernels[str(path)] = module.kernel
        finally:
            if before is None:
                del os.environ[_POINTER_VARIABLE]
            else:
                os.environ[_POINTER_VARIABLE] = before
    return _kernels[str(path)]


def resolve(path: str) -> Any:
    """Returns what `module` or `module:attribute.path` names, importing the module."""
    module, _, attributes = path.partition(":")
    value: Any = importlib.import_module(module)
    for part in attributes.split(".") if attributes else ():
        value = getattr(value, part)
    return value


def read_piece(data: bytes) -> dict[str, Any]:
    """Returns a verified `piece.json`. Raises ValueError for a format that this version does not know."""
    piece: dict[str, Any] = json.loads(data)
    if piece.get("format") != FORMAT:
        raise ValueError(f"piece format {piece.get('format')!r}, this version reads {FORMAT}")
    return piece
