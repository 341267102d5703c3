"""What the safetensors files of a folder hold, read from their headers without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkiln.core.errors import ModelError, WeightsDamaged

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

# safetensors' names of floating dtypes and ours.
_FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_RESTORE = "copy the file again from where it came"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a safetensors file: where it lies and what its header promises."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def stored_tensors(ref: str, folder: Path) -> dict[str, StoredTensor]:
    """Returns every tensor of the folder's weights by name.

    Raises ModelError when there are no safetensors, WeightsDamaged when a file is missing, cut
    short, or does not hold what the index or its own header says.
    """
    index = folder / INDEX
    if index.exists():
        return _sharded(ref, folder, _read_index(ref, index))
    single = folder / SINGLE
    if single.exists():
        return read_header(ref, single)
    if any((folder / name).exists() for name in _PICKLES):
        raise ModelError(
            ref, "its weights are pickles", "load it with transformers and save it again (save_pretrained)"
        )
    raise ModelError(ref, f"has no weights ({SINGLE} or {INDEX})", "download the weights beside config.json")


def weights_dtype(ref: str, folder: Path) -> str | None:
    """Returns the dtype of the first floating tensor, or None where the folder has no weights."""
    try:
        tensors = stored_tensors(ref, folder)
    except WeightsDamaged:
        raise
    except ModelError:
        return None
    return next((_FLOATS[tensor.dtype] for tensor in tensors.values() if tensor.dtype in _FLOATS), None)


def read_header(ref: str, file: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of one file; raises WeightsDamaged unless it is as long as its header says."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise WeightsDamaged(
                    ref, f"{file.name} is cut short: {size} bytes, less than its header", _RESTORE
                )
            header = json.loads(stream.read(length))
    except OSError as error:
        raise WeightsDamaged(
            ref, f"{file.name} cannot be read: {error.strerror or error}", _RESTORE
        ) from None
    except ValueError:
        raise WeightsDamaged(ref, f"{file.name} is not a safetensors file", _RESTORE) from None
    try:
        header.pop("__metadata__", None)
        tensors = {name: _tensor(file, facts) for name, facts in header.items()}
        end = max((facts["data_offsets"][1] for facts in header.values()), default=0)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        raise WeightsDamaged(ref, f"{file.name} has a header that makes no sense", _RESTORE) from None
    if size != 8 + length + end:
        kind = "is cut short" if size < 8 + length + end else "is too long"
        raise WeightsDamaged(
            ref, f"{file.name} {kind}: {size} bytes, its header promises {8 + length + end}", _RESTORE
        )
    return tensors


def _tensor(file: Path, facts: Mapping[str, Any]) -> StoredTensor:
    shape = tuple(int(extent) for extent in facts["shape"])
    start, end = facts["data_offsets"]
    item = _BYTES.get(facts["dtype"])
    if item is not None and end - start != math.prod(shape) * item:
        raise ValueError("a tensor's length and shape disagree")
    return StoredTensor(file, str(facts["dtype"]), shape)


def _read_index(ref: str, index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if all(isinstance(name, str) and isinstance(file, str) for name, file in weight_map.items()):
            return dict(weight_map)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise WeightsDamaged(ref, f"{index.name} has no readable weight_map", _RESTORE)


def _sharded(ref: str, folder: Path, weight_map: Mapping[str, str]) -> dict[str, StoredTensor]:
    held: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise WeightsDamaged(ref, f"{INDEX} names the file {shard!r}, outside the folder", _RESTORE)
        if not (folder / shard).exists():
            raise WeightsDamaged(
                ref, f"{shard} is missing, {INDEX} names it", f"download {shard} into the folder"
            )
        held[shard] = read_header(ref, folder / shard)
    for name, shard in weight_map.items():
        if name not in held[shard]:
            raise WeightsDamaged(ref, f"{shard} does not hold {name}, {INDEX} says so", _RESTORE)
    return {name: held[shard][name] for name, shard in weight_map.items()}
