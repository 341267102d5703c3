"""Descriptions of devices as if they had been used with the versions that are installed here."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch

from graphkiln.core.target.description import find_description
from graphkiln.core.target.torch_build import ptxas_text, torch_sources
from graphkiln.core.target.tried import DESCRIBED, LIGHT, torch_minor, torch_version

_TRIED = DESCRIBED if torch.backends.cuda.is_built() else LIGHT
can_cross = pytest.mark.skipif(
    torch_minor() not in _TRIED or importlib.util.find_spec("triton") is None,
    reason="needs a build of torch that was tried, and Triton",
)


def described_file(title: str, folder: Path) -> str:
    """Returns the path of a description like the built-in one, seen with what is here."""
    found = find_description(title)
    versions = replace(
        found.versions,
        torch=str(torch.__version__) if torch.backends.cuda.is_built() else f"{torch_version()}+cu130",
        torch_sources=torch_sources(),
        cuda=torch.version.cuda or found.versions.cuda,
        triton=metadata.version("triton"),
        ptxas=ptxas_text(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
    )
    file = folder / f"{title}.json"
    file.write_text(json.dumps(replace(found, versions=versions).as_json()))
    return str(file)
