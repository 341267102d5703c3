"""Importing Inductor warns of what torch itself still uses; a test of ours should not end there."""

from __future__ import annotations

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("torch._inductor.compile_fx")
