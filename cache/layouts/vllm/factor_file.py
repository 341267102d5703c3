"""`cache_key_factors.json`: what a short-hash folder is named after, written once and never read by vLLM."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from graphkiln.cache.layouts.files import FileFault, read_file

FACTOR_FILE = "cache_key_factors.json"
KEYS = {"env", "config_hash", "code_hash", "compiler_hash"}
_MOST = 16 << 20


@dataclass(frozen=True)
class FactorFile:
    """The four factors: the environment with its values, of the other three only a hash."""

    env: Mapping[str, Any]
    config: str
    code: str
    compiler: str

    @cached_property
    def hashes(self) -> dict[str, str]:
        """The hash of each factor by name."""
        text = json.dumps(self.env, sort_keys=True)
        env = hashlib.sha256(text.encode()).hexdigest()
        return {"env": env, "config": self.config, "code": self.code, "compiler": self.compiler}

    @cached_property
    def key(self) -> str:
        """64 hex digits whose first ten name the folder."""
        return _sha256(str(list(self.hashes.values())))

    def aot_name(self, version: str, qualified: str, first_line: int) -> str:
        """Return the name of the AOT folder, as it is where mega AOT artifacts are off."""
        model = _sha256(f"{version}{qualified}{first_line}")
        return _sha256(str([self.hashes["env"], self.config, model]))


def read_factor_file(folder: Path, name: str = FACTOR_FILE) -> FactorFile:
    """Return the factors of a piece folder; `FileFault` of kind version for another set of facts."""
    data = read_file(folder, name, _MOST)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        detail = "empty" if not data else f"not JSON: {error}"[:120]
        raise FileFault(name, "schema", detail) from None
    if not isinstance(found, dict):
        raise FileFault(name, "schema", "not a JSON object")
    if set(found) != KEYS:
        raise FileFault(name, "version", f"holds {', '.join(sorted(map(str, found))) or 'nothing'}")
    hashes = [found[name] for name in ("config_hash", "code_hash", "compiler_hash")]
    good = isinstance(found["env"], dict) and all(isinstance(value, str) for value in hashes)
    if not good or not re.fullmatch(r"[0-9a-f]{64}", hashes[1]):
        raise FileFault(name, "schema", "its env is no object, or a hash is no hash")
    return FactorFile(found["env"], *hashes)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
