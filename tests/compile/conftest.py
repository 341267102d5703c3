"""What tests that compile share."""

from __future__ import annotations

import importlib
import warnings

import pytest


@pytest.fixture(scope="session", autouse=True)
def _inductor_is_imported() -> None:
    """Importing Inductor warns of what torch itself still uses; a test of ours should not end there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("torch._inductor.compile_fx")
