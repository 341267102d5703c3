"""One call of an entry without its model: `python -m graphkiln.core.smoke FOLDER`.

Every piece is loaded and run once on made-up tensors of the recorded shapes, attention included, so that
an artifact which loads and then fails at its first call is found before a server finds it. One line of
JSON goes to stdout: {"ok": true | false | null, "detail": "..."}; null means that it cannot be known
without the model.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Registers the ops that compiled code calls.
import graphkiln.core.ops.attention  # noqa: F401
from graphkiln.cache.errors import CacheError
from graphkiln.cache.store.entries import Entry
from graphkiln.core.errors import CoreError
from graphkiln.core.fetching import Fetch
from graphkiln.core.loading import load_stored_part
from graphkiln.core.ops.forward_context import ForwardContext, set_forward_context
from graphkiln.core.ops.kv_cache import blocks_needed, build_metadata, make_kv_caches
from graphkiln.core.ops.layer import AttentionLayer
from graphkiln.core.stored import RANK, EntryStored
from graphkiln.core.target.cpu import cpu_features, cpu_target
from graphkiln.core.trace.custom_ops import find_op
from graphkiln.core.trace.observe import untyped_constant

_TOKENS, _BLOCK = 13, 16
_CPU = torch.device("cpu")


class NeedsModel(Exception):
    """The entry cannot be called without its model, because of the text."""


def smoke(path: Path) -> dict[str, Any]:
    """Returns whether one call of every part of an entry went well, and what happened."""
    try:
        entry = Entry(path)
        told = [_call(entry, prefix) for prefix in entry.manifest(RANK).parts]
    except NeedsModel as why:
        return {"ok": None, "detail": str(why)}
    except (CacheError, CoreError) as error:
        return {"ok": False, "detail": str(error)}
    except Exception as error:
        # Whatever generated code raises is what a server would run into.
        return {"ok": False, "detail": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"ok": True, "detail": "; ".join(told)}


def _call(entry: Entry, prefix: str) -> str:
    wiring = entry.read_json(RANK, prefix, "wiring.json")
    for name in ("door", "inputs", "steps", "pieces"):
        if name not in wiring:
            raise NeedsModel(f"its wiring has no {name}")
    if any("path" in spec for spec in wiring["inputs"]):
        raise NeedsModel("it takes inputs from places in its model")
    for step in wiring["steps"]:
        if "op" in step and find_op(step["op"]) is None:
            raise NeedsModel(f"the op {step['op']} is not registered without it")
    if any("members" in row for row in wiring["door"]["arguments"]):
        raise NeedsModel("it takes IntermediateTensors")
    _require_machine(entry.header["target"])
    code = entry.factors().as_json()["code"][prefix]
    stand_in = StandIn(code["parameters"])
    stored, target = EntryStored(entry), cpu_target(entry.header["target"]["name"])
    serve = load_stored_part(stored, Fetch(stored), prefix, stand_in, target)
    tokens = min(max(_TOKENS, serve.door.smallest), serve.door.largest)
    arguments = [_argument(row, tokens) for row in wiring["door"]["arguments"]]
    with torch.no_grad(), _context(wiring, code["ops"], tokens):
        result = serve(*arguments)
    shapes = ", ".join(str(list(tensor.shape)) for tensor in _tensors(result))
    return f"{prefix} of {tokens} tokens gave {shapes or type(result).__name__}"


def _require_machine(target: Mapping[str, Any]) -> None:
    """Raises NeedsModel when an entry is for another machine than this one: that says nothing about it."""
    if target.get("device") == "cuda":
        raise NeedsModel("an entry for a GPU is not called without its model")
    here = "aarch64" if platform.machine() in ("aarch64", "arm64") else platform.machine()
    missing = sorted(set(target.get("features") or ()) - cpu_features())
    if target.get("arch") != here or missing:
        raise NeedsModel(f"it is for {target.get('name')}, and this machine is not")


class StandIn(nn.Module):
    """Holds small random tensors under the names, shapes and strides of a recorded model."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self._rows: dict[str, dict[str, torch.Tensor]] = {"parameter": {}, "buffer": {}}
        for kind, name, dtype, shape, stride, *_ in rows:
            tensor = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype.removeprefix("torch.")))
            if tensor.dtype.is_floating_point:
                tensor.normal_(0.0, 0.02, generator=generator)
            else:
                tensor.zero_()
            self._rows[kind][name] = tensor

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """Yields the recorded parameters."""
        return iter(self._rows["parameter"].items())

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the recorded buffers."""
        return iter(self._rows["buffer"].items())


def _argument(row: Mapping[str, Any], tokens: int) -> Any:
    if "dtype" not in row:
        return untyped_constant(row["constant"])
    shape = [tokens if size is None else size for size in row["shape"]]
    # Zeros are valid token ids and positions of any model.
    return torch.zeros(shape, dtype=getattr(torch, row["dtype"].removeprefix("torch.")), device=row["device"])


def _context(
    wiring: Mapping[str, Any], ops: Mapping[str, Any], tokens: int
) -> contextlib.AbstractContextManager[Any]:
    # Not by the steps: where nothing was cut, attention is called from inside a piece.
    if not any(name.startswith("graphkiln::unified") for name in ops):
        return contextlib.nullcontext()
    description = wiring.get("model")
    if description is None:
        raise NeedsModel("its attention layers are known from its model only")
    layers = [AttentionLayer(**layer) for layer in description["layers"]]
    dtype = getattr(torch, description["dtype"])
    blocks = list(range(blocks_needed(tokens, _BLOCK)))
    return set_forward_context(
        ForwardContext(
            make_kv_caches(layers, len(blocks), _BLOCK, dtype, _CPU),
            build_metadata([tokens], [tokens], [blocks], _BLOCK, _CPU),
            {layer.name: layer for layer in layers},
        )
    )


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)
    elif isinstance(result, Mapping):
        yield from _tensors(list(result.values()))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(smoke(Path(sys.argv[1]))) + "\n")
