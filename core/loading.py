"""From what lies in a cache to a part that can be called: every check first, then the pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphkiln.cache.errors import GraphkilnError
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.inspect.attention import layers_called
from graphkiln.cache.store.documents import DocumentFault, parse_object
from graphkiln.core.attending import Attending
from graphkiln.core.compile.execute import CompiledPart, LoadedPiece
from graphkiln.core.compile.sealed import ArtifactFiles, SealedPiece, load_piece
from graphkiln.core.compile.soundness import Unsound, require_sound
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import LoadRefused, PieceRefused
from graphkiln.core.fetching import Fetch
from graphkiln.core.models.declared import check_layers
from graphkiln.core.models.light import restore
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import ModelSource
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.stored import Stored
from graphkiln.core.target.named import Target
from graphkiln.core.trace.code import check_code, check_live, check_source
from graphkiln.core.trace.custom_ops import check_ops
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.kernels import check_kernels
from graphkiln.core.trace.paths import PathBroken, Walker


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


def differences(
    stored: Stored, modules: Mapping[str, torch.nn.Module], layers: Sequence[AttentionLayer] = ()
) -> list[Difference]:
    """Returns how live parts, by prefix, differ from what was compiled.

    So do the attention `layers` that their model declares. Raises EntryDamaged for a broken file,
    LoadRefused for data that makes no sense.
    """
    with _sense(stored, "guards"):
        code = stored.code()
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
        declared = {
            name: layer for part in code.values() for name, layer in part.get("attention", {}).items()
        }
        found = found or check_layers(declared, layers)
        for prefix, module in modules.items():
            if not found:
                found = check_code(code[prefix], stored.wiring(prefix)["sources"], module)
        return found


def recorded_code(stored: Stored, prefix: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the code factor of a part and the digests of its source files."""
    return stored.code()[prefix], stored.wiring(prefix)["sources"]


def _there(present: bool) -> str | None:
    return "compiled" if present else None


def restored(
    stored: Stored, prefix: str, source: ModelSource, deployment: Deployment, device: torch.device
) -> tuple[ServedModel | None, str]:
    """Returns the served model without building it, or None and why it has to be built.

    Holds what shows without the live classes: traced functions, variables, torch's state, tensors and
    ops. Classes, attributes, hooks and globals follow from the config and the files that build the
    model, which are compared instead. Nothing of the weights is read before the rest agreed. Raises
    EntryDamaged for a broken file, LoadRefused for data that makes no sense.
    """
    with _sense(stored, "model"):
        code = stored.code().get(prefix)
        description = stored.description(prefix) if code is not None else None
        if code is None or description is None:
            return None, "the entry does not describe how"
        wiring = stored.wiring(prefix)
        if any("path" in spec for spec in wiring["inputs"]):
            return None, "it takes inputs from places in its model"
        digests = CodeDigests(wiring["sources"])
        found = check_source(code, wiring["sources"]) or check_ops(code["ops"], digests)
        found = found or check_kernels(code.get("kernels", {}), digests)
        if found:
            return None, f"{found[0].name} is not as it was"
        served = restore(source, deployment, description, stored.buffers(prefix), device)
        if isinstance(served, str):
            return None, served
        found = check_live(code, served.backbone)
        return (None, f"{found[0].name} is not as it was") if found else (served, "")


def load_stored_part(
    stored: Stored, fetch: Fetch, prefix: str, module: torch.nn.Module, target: Target
) -> CompiledPart:
    """Returns a checked part, ready to be called.

    Raises EntryDamaged for a broken file and LoadRefused when this machine cannot run the code; the
    device is compared before any library is mapped.
    """
    require_device(stored.name, target)
    with _sense(stored, "wiring"):
        wiring = stored.wiring(prefix)
        require_sound(wiring, stored.code()[prefix]["ops"])
        artifacts = [fetch.artifact(piece["artifact"]) for piece in wiring["pieces"]]
        return load_part(wiring, artifacts, module, stored.name, target.torch_device)


def load_stored_attention(
    stored: Stored, fetch: Fetch, prefixes: Sequence[str], attending: Attending
) -> None:
    """Has a model's attention launch what lies beside its parts, or notes that nothing does.

    Raises EntryDamaged for a broken file, LoadRefused for code that cannot be used.
    """
    with _sense(stored, "attention"):
        # All parts name the same.
        found = stored.wiring(prefixes[0]).get("attention")
        if found is None:
            attending.lack([layer for prefix in prefixes for layer in layers_called(stored.wiring(prefix))])
        else:
            attending.load(stored.name, found["dtypes"], fetch.artifact(found["artifact"]))


def require_device(name: str, target: Target) -> None:
    """Raises LoadRefused naming what this machine lacks, or has otherwise, of what the code was built for."""
    missing = target.missing_here()
    if missing:
        raise LoadRefused(name, f"it was built for {target.name} and needs {', '.join(missing)}")


def load_part(
    wiring: Mapping[str, Any],
    artifacts: Sequence[ArtifactFiles],
    module: torch.nn.Module,
    name: str,
    device: torch.device,
) -> CompiledPart:
    """Returns a part of its wiring and its artifacts, in the order of the wiring's pieces.

    What was compiled for one token count only is mapped when a call brings that count.
    """
    outs = {step["piece"]: len(step["outs"]) for step in wiring["steps"] if "piece" in step}
    pieces = []
    for artifact, spec in zip(artifacts, wiring["pieces"], strict=True):
        inputs = parse_object(artifact.read("inputs.json"))["inputs"]
        piece = _Piece(artifact, spec["fingerprint"], outs.get(spec["piece"]), name, device)
        start, end = spec["range"]
        pieces.append(LoadedPiece(piece.load, inputs, lazy=start == end))
    try:
        return CompiledPart(wiring, pieces, module, Walker(module).walk)
    except PathBroken as broken:
        raise LoadRefused(name, f"its input at {broken.step} is not in this model") from broken


@dataclass(frozen=True)
class _Piece:
    """One piece before it is mapped."""

    artifact: ArtifactFiles
    fingerprint: str
    outs: int | None
    name: str
    device: torch.device

    def load(self) -> SealedPiece:
        """Returns the piece. Raises PieceRefused where it cannot be mapped or is another one."""
        which = getattr(self.artifact, "artifact", "")
        try:
            piece = load_piece(self.artifact, self.device.index or 0)
        except (ImportError, OSError, AttributeError) as error:
            raise PieceRefused(self.name, f"a kernel cannot be mapped: {error}", which) from error
        except ValueError as error:
            raise PieceRefused(self.name, str(error), which) from error
        if piece.fingerprint != self.fingerprint:
            raise LoadRefused(self.name, "an artifact holds another piece than the wiring names")
        if self.outs not in (None, piece.num_outputs):
            raise LoadRefused(
                self.name, f"a piece gives {piece.num_outputs} values, the wiring takes {self.outs}"
            )
        return piece


@contextlib.contextmanager
def _sense(stored: Stored, what: str) -> Iterator[None]:
    """Turns whatever comes of data that makes no sense into LoadRefused, which ends no start.

    Digests say that the data is what was written, not that it can be understood.
    """
    try:
        yield
    except (GraphkilnError, OSError, MemoryError):
        raise
    except Unsound as error:
        raise LoadRefused(stored.name, f"its {what} makes no sense: {error}") from error
    except DocumentFault as fault:
        raise LoadRefused(stored.name, f"its {what} makes no sense: {fault.detail}") from fault
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise LoadRefused(stored.name, f"its {what} makes no sense: {text}") from error
