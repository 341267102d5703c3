"""From an entry on disk to a part that can be called: every check first, then the pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphkiln.cache.errors import EntryDamaged
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.store.entries import Entry
from graphkiln.core.compile.execute import CompiledPart
from graphkiln.core.compile.sealed import ArtifactFiles, SealedPiece, load_piece
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import LoadRefused
from graphkiln.core.models.light import restore
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import ModelSource
from graphkiln.core.target.named import Target
from graphkiln.core.trace.code import check_code, check_live, check_source
from graphkiln.core.trace.custom_ops import check_ops
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.paths import PathBroken, Walker

RANK = "0_0"


@dataclass(frozen=True)
class EntryArtifact:
    """An artifact of an entry: each file is handed out after its own digest matched the manifest."""

    entry: Entry
    artifact: str

    def read(self, name: str) -> bytes:
        """Returns a file's bytes."""
        return self.entry.files.checked(*self._record(name))

    def path(self, name: str) -> Path:
        """Returns a file's path, for what has to be mapped by name."""
        self.entry.files.measured(*self._record(name))
        return self.entry.path / "artifacts" / self.artifact / name

    def _record(self, name: str) -> tuple[str, Any]:
        path = f"artifacts/{self.artifact}/{name}"
        record = self.entry.manifest(RANK).files.get(path)
        if record is None:
            raise EntryDamaged(self.entry.path.name, path, "missing", "the manifest does not list it")
        return path, record


@dataclass(frozen=True)
class FreshArtifact:
    """An artifact that was built by this process and is not on disk as an entry yet."""

    files: Mapping[str, bytes | Path]

    def read(self, name: str) -> bytes:
        """Returns a file's bytes."""
        content = self.files[name]
        return content if isinstance(content, bytes) else content.read_bytes()

    def path(self, name: str) -> Path:
        """Returns the path of a library where the compiler put it."""
        content = self.files[name]
        assert isinstance(content, Path)
        return content


def differences(entry: Entry, modules: Mapping[str, torch.nn.Module]) -> list[Difference]:
    """Returns how live parts, by prefix, differ from what an entry was compiled for.

    Raises EntryDamaged for a broken file of the entry.
    """
    code = entry.factors().as_json()["code"]
    found = [
        Difference(
            "code",
            f"part {prefix}",
            _there(prefix in code),
            _there(prefix in modules),
            remedy="compile again",
        )
        for prefix in sorted({*code} ^ {*modules})
    ]
    for prefix, module in modules.items():
        if not found:
            wiring = entry.read_json(RANK, prefix, "wiring.json")
            found = check_code(code[prefix], wiring["sources"], module)
    return found


def recorded_code(entry: Entry, prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the code factor of a part and the digests of its source files."""
    wiring = entry.read_json(RANK, prefix, "wiring.json")
    return entry.factors().as_json()["code"][prefix], wiring["sources"]


def _there(present: bool) -> str | None:
    return "compiled" if present else None


def restored(
    entry: Entry, prefix: str, source: ModelSource, deployment: Deployment, device: torch.device
) -> tuple[ServedModel | None, str]:
    """Returns the served model of an entry without building it, or None and why it has to be built.

    Holds what shows without the live classes: traced functions, variables, torch's state, tensors and
    ops. Classes, attributes, hooks and globals follow from the config and the files that build the
    model, which are compared instead. Raises EntryDamaged for a broken file of the entry.
    """
    code = entry.factors().as_json()["code"].get(prefix)
    wiring = entry.read_json(RANK, prefix, "wiring.json")
    description = wiring.get("model")
    if code is None or description is None:
        return None, "the entry does not describe how"
    if any("path" in spec for spec in wiring["inputs"]):
        return None, "it takes inputs from places in its model"
    found = check_source(code, wiring["sources"])
    if found:
        return None, f"{found[0].name} is not as it was"
    served = restore(source, deployment, description, device)
    if isinstance(served, str):
        return None, served
    found = check_live(code, served.backbone) or check_ops(code["ops"], CodeDigests(wiring["sources"]))
    return (None, f"{found[0].name} is not as it was") if found else (served, "")


def load_entry_part(entry: Entry, prefix: str, module: torch.nn.Module, target: Target) -> CompiledPart:
    """Returns a part of a checked entry, ready to be called.

    Raises EntryDamaged for a broken file and LoadRefused when this machine cannot run the code; the
    device is compared before any library is mapped.
    """
    require_device(entry.path.name, target)
    wiring = entry.read_json(RANK, prefix, "wiring.json")
    artifacts = [EntryArtifact(entry, piece["artifact"]) for piece in wiring["pieces"]]
    return load_part(wiring, artifacts, module, entry.path.name, target.torch_device)


def require_device(entry: str, target: Target) -> None:
    """Raises LoadRefused naming what this machine lacks, or has otherwise, of what the code was built for."""
    missing = target.missing_here()
    if missing:
        raise LoadRefused(entry, f"it was built for {target.name} and needs {', '.join(missing)}")


def load_part(
    wiring: Mapping[str, Any], artifacts: list[Any], module: torch.nn.Module, name: str, device: torch.device
) -> CompiledPart:
    """Returns a part of its wiring and its artifacts, in the order of the wiring's pieces."""
    pieces = [
        _piece(artifact, piece["fingerprint"], name, device)
        for artifact, piece in zip(artifacts, wiring["pieces"], strict=True)
    ]
    try:
        return CompiledPart(wiring, pieces, module, Walker(module).walk)
    except PathBroken as broken:
        raise LoadRefused(name, f"its input at {broken.step} is not in this model") from broken


def _piece(artifact: ArtifactFiles, fingerprint: str, name: str, device: torch.device) -> SealedPiece:
    try:
        piece = load_piece(artifact, device.index or 0)
    except (ImportError, OSError, AttributeError) as error:
        raise LoadRefused(name, f"a kernel cannot be mapped: {error}") from error
    except ValueError as error:
        raise LoadRefused(name, str(error)) from error
    if piece.fingerprint != fingerprint:
        raise LoadRefused(name, "an artifact holds another piece than the wiring names")
    return piece
