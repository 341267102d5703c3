"""Whether a model would be built here as it was there, told without building it.

A Hugging Face model is a function of its config, of the files that build it, and of what a process
may have changed in their modules before. Where the modules were never imported nobody has changed
them, so that equal files mean an equal model: its classes, attributes, hooks and globals need not be
looked at again. Every doubt is answered with "build it", which is slower and never wrong.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from graphkiln.cache.factors.functions import file_digest

# Where modeling code lives. Other packages count by their installed version.
_BUILDERS = ("transformers", "huggingface_hub")
_OURS = "graphkiln.core"
_OUR_PARTS = ("models", "ops")
# What transformers reads when it is imported, apart from caches, logging and network settings.
_VARIABLES = ("TRANSFORMERS_", "USE_", "ACCELERATE_", "XLA_", "DISABLE_KERNEL_MAPPING")
_HARMLESS_VARIABLES = ("TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TRANSFORMERS_VERBOSITY")

# That of an editable install of ours finds nothing but our own parts, which are compared by their files;
# that of setuptools, which some environments have and others not, nothing but distutils.
_HARMLESS_FINDERS = ("__editable___graphkiln_", "_distutils_hack")

_imported_here: set[str] = set()


def import_untouched(name: str) -> ModuleType:
    """Returns a module of a builder; if nobody has imported its package before, it counts as unchanged."""
    package = name.partition(".")[0]
    if package not in sys.modules:
        _imported_here.add(package)
    return importlib.import_module(name)


def untouched() -> tuple[str, ...] | None:
    """Returns who finds modules in this process, or None when modeling code is imported already."""
    if any(name in sys.modules and name not in _imported_here for name in _BUILDERS):
        return None
    kinds = (finder if isinstance(finder, type) else type(finder) for finder in sys.meta_path)
    return tuple(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in kinds
        if not kind.__module__.startswith(_HARMLESS_FINDERS)
    )


def provenance(finders: tuple[str, ...]) -> dict[str, Any]:
    """Returns what the model that this process has just built came from; `finders` from before the build."""
    return {
        "files": {name: _digests(root, _loaded(name)) for name, root in _roots().items()},
        "distributions": _distributions(),
        "variables": _variables(os.environ),
        "finders": list(finders),
        "python": list(sys.version_info[:2]),
    }


def difference(then: Mapping[str, Any]) -> str | None:
    """Returns why a model cannot be taken to be what it was, as a clause, or None when it can."""
    finders = untouched()
    if finders is None:
        return "transformers is imported already"
    now = {
        "distributions": _distributions(),
        "variables": _variables(os.environ),
        "finders": list(finders),
        "python": list(sys.version_info[:2]),
    }
    for part, value in now.items():
        if value != then.get(part):
            return f"{part} differ: {_first_difference(then.get(part), value)}"
    roots = _roots()
    for name, files in then["files"].items():
        for relative, digest in files.items():
            path = roots[name] / relative if name in roots else None
            if path is None or not path.is_file() or file_digest(path) != digest:
                return f"{name}/{relative} has changed"
    return None


def _roots() -> dict[str, Path]:
    """The folder of each package that counts by its files."""
    roots = {_OURS: Path(__file__).parent.parent}
    for name in _BUILDERS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots[name] = Path(spec.submodule_search_locations[0])
    return roots


def _loaded(package: str) -> Iterable[Path]:
    prefixes = [f"{_OURS}.{part}" for part in _OUR_PARTS] if package == _OURS else [package]
    for name, module in sorted(sys.modules.items()):
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes):
            file = getattr(module, "__file__", None)
            if file is not None and file.endswith(".py"):
                yield Path(file)


def _digests(root: Path, files: Iterable[Path]) -> dict[str, str]:
    return {file.relative_to(root).as_posix(): file_digest(file) for file in files}


def _distributions() -> list[str]:
    """What is installed, `name-version` as the folders of its metadata say."""
    found: set[str] = set()
    for place in sys.path:
        # setuptools puts its private copies on the path when a compiler is looked for.
        if os.path.basename(place) == "_vendor":
            continue
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        found.update(name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info"))
    # Our own parts that count are compared by their files.
    return sorted(name for name in found if not name.startswith("graphkiln-"))


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_VARIABLES) and name not in _HARMLESS_VARIABLES
    }


def _first_difference(then: Any, now: Any) -> str:
    if isinstance(now, dict):
        then, now = list((then or {}).items()), list(now.items())
    changed = [item for item in now if item not in (then or [])] or [
        item for item in then or [] if item not in now
    ]
    return str(changed[0]) if changed else "their order"
