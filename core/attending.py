"""The attention kernels of one start: made with its parts, or taken from where these lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from graphkiln.cache.factors.canonical import digest
from graphkiln.core.compile.sealed import ArtifactFiles
from graphkiln.core.compile.sealed_attention import load_attention
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import LoadRefused, PieceRefused
from graphkiln.core.models.served import ServedModel
from graphkiln.core.ops.backends import attention_backends
from graphkiln.core.ops.paged import PagedTriton, unfit
from graphkiln.core.ops.specialisations import LayerDtypes, Specialisation, reachable
from graphkiln.core.target.cuda import CudaTarget
from graphkiln.core.target.named import Target

# A layer's dtypes as they stand in a wiring, by its name.
Dtypes = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class BuiltAttention:
    """Sealed kernels: the files of their artifact, what each layer is called with, how many there are."""

    files: Mapping[str, bytes | Path]
    dtypes: Dtypes
    kernels: int
    triton: str

    @property
    def build(self) -> dict[str, Any]:
        """What of it tells two builds apart."""
        tables = {name: digest(data.decode()) for name, data in self.files.items() if isinstance(data, bytes)}
        return {"sources": tables, "triton": self.triton}


class Attending:
    """One model's attention on one target.

    `left_out` says after a build what of it is not in the entry, and why, "" where nothing is.
    """

    def __init__(self, served: ServedModel, deployment: Deployment, target: Target) -> None:
        self._served = served
        self._deployment = deployment
        self._target = target
        self.left_out = ""

    def build(
        self, graphs: Iterable[fx.GraphModule], scratch: Path, kept: Mapping[str, bytes | Path] | None
    ) -> BuiltAttention | None:
        """Returns every kernel that a step can ask for, None where there is none to seal.

        `graphs` are the traced parts. `kept` are the files of a damaged entry that are sound. Raises
        CompileError where the graphs call other layers than the model has.
        """
        # Here and not above: a hit imports nothing that compiles.
        from graphkiln.core.compile import attention
        from graphkiln.core.compile.triton_kernels import triton_identity

        served, target, calls = self._served, self._target, attention.calls_in(graphs)
        if served.layers:
            attention.require_as_declared(calls, served.layers)
        if not isinstance(target, CudaTarget) or not (served.layers or calls.attended):
            return None
        if _why_not_ours(served) is not None:
            self.lack([*calls.attended])
            return None
        dtypes = attention.dtypes_of(calls, served)
        wanted = self._wanted(target, dtypes)
        files = kept or attention.seal_attention(wanted, target, scratch)
        return BuiltAttention(files, dtypes, len(wanted), triton_identity())

    def lack(self, layers: Sequence[str]) -> None:
        """Notes that an entry has no kernels for `layers`, where it should say why."""
        if not isinstance(self._target, CudaTarget) or not layers:
            return
        more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        why = _why_not_ours(self._served) or "it was made without"
        self.left_out = f"attention of {layers[0]}{more} is not in the entry: {why}"

    def load(self, name: str, dtypes: Dtypes, files: ArtifactFiles) -> None:
        """Puts sealed kernels where the model's attention launches them from.

        Raises PieceRefused for code that cannot be loaded, LoadRefused where a step could ask for more.
        """
        device = self._target.torch_device.index or 0
        artifact = getattr(files, "artifact", "")
        try:
            found = load_attention(files, device)
        except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
            raise PieceRefused(name, f"an attention kernel cannot be loaded: {error}", artifact) from error
        launches = self._served.launches
        launches.put(found, device, {layer: _typed(names) for layer, names in dtypes.items()})
        assert isinstance(self._target, CudaTarget)
        missing = launches.missing(self._wanted(self._target, dtypes))
        if missing:
            why = launches.why_not(missing[0])
            raise LoadRefused(name, f"it lacks {missing[0].kernel} for a step of this deployment ({why})")

    def _wanted(self, target: CudaTarget, dtypes: Dtypes) -> tuple[Specialisation, ...]:
        served, asked = self._served, self._deployment
        # A call of a check has more requests than a step where one request does not take all its tokens.
        whole = -(-asked.max_num_batched_tokens // served.max_model_len)
        return reachable(
            [(layer, _typed(dtypes[layer.name])) for layer in served.layers],
            served.dtype,
            asked.block_size,
            max(asked.max_num_seqs, whole),
            target.device.multi_processor_count,
        )


def _why_not_ours(served: ServedModel) -> str | None:
    """Returns why a model's attention is not launched from an entry, None where it is.

    It is where the first backend that computes it, on a device that is not asked, is the Triton one.
    """
    if not served.layers:
        return "the model does not say in attention_layers what its layers are"
    for backend in attention_backends():
        if isinstance(backend, PagedTriton):
            return next((why for layer in served.layers if (why := unfit(layer, served.dtype))), None)
        if not any(backend.refusal(layer, served.dtype, served.device) for layer in served.layers):
            return f"the backend {backend.name} computes it"
    return "no backend computes it"


def _typed(names: Sequence[str]) -> LayerDtypes:
    return LayerDtypes(*(getattr(torch, name) for name in names))
