"""Sealed attention kernels, ready to be launched: no Triton and no compiler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graphkiln.cache.store.manifest import ATTENTION_TABLE
from graphkiln.core.compile.sealed import ArtifactFiles
from graphkiln.core.compile.sealed_triton import load_variant
from graphkiln.core.ops.launches import Launch
from graphkiln.core.ops.specialisations import Specialisation

FORMAT = 1
_GRID = ("grid_x", "grid_y", "grid_z")


def load_attention(files: ArtifactFiles, device: int) -> dict[Specialisation, Launch]:
    """Returns the launch of each kernel that an artifact holds, its code loaded on the device of that index.

    Raises ValueError for an unknown format, ImportError and RuntimeError for code that it does not take.
    """
    table = json.loads(files.read(ATTENTION_TABLE))
    if table.get("format") != FORMAT:
        raise ValueError(f"attention format {table.get('format')!r}, this version reads {FORMAT}")
    return {Specialisation.of_json(row): _launch(row, files, device) for row in table["kernels"]}


def _launch(row: Mapping[str, Any], files: ArtifactFiles, device: int) -> Launch:
    described = {"name": row["kernel"], "parameters": [*_GRID, *row["arguments"]]}
    launch, _ = load_variant({**row, "prefix": [], "grid": _GRID}, described, files.path, device)
    return launch
