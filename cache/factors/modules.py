"""Where the source file of a module lies, found without importing anything."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path


def locate(module_name: str) -> Path | None:
    """Return the source file of a module, or None when there is none to read.

    What is imported already answers for itself. Otherwise each package on the way down is asked
    of the import system's finders, the way an import would ask them but without running any
    package's `__init__`; editable installs have finders of their own, so joining paths alone
    would not find them.
    """
    spec: ModuleSpec | None = None
    search: Sequence[str] | None = None
    parts = module_name.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if name in sys.modules:
            if depth == len(parts):
                return _source_of_imported(name)
            search = _search_path(getattr(sys.modules[name], "__path__", None))
        else:
            spec = _find_spec(name, search) or _spec_beside(parts[depth - 1], search)
            search = None if spec is None else _search_path(spec.submodule_search_locations)
        if search is None and depth < len(parts):
            return None
    return None if spec is None else _source_of(spec)


def _source_of_imported(name: str) -> Path | None:
    module = sys.modules[name]
    spec = getattr(module, "__spec__", None)
    found = _source_of(spec) if isinstance(spec, ModuleSpec) else None
    # A script has no spec, a frozen module's spec may name no file: both have `__file__`.
    return found or _python_file(getattr(module, "__file__", None))


def _source_of(spec: ModuleSpec) -> Path | None:
    # `frozen` modules (os, codecs, ...) tell their real file only here.
    frozen = getattr(spec.loader_state, "filename", None)
    return _python_file(spec.origin if spec.has_location else frozen)


def _python_file(origin: object) -> Path | None:
    if not isinstance(origin, str) or not origin.endswith((".py", ".pyw")):
        return None
    path = Path(origin)
    return path if path.is_file() else None


def _find_spec(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, search)
        # A nested namespace package asks for its parent in sys.modules, where it need not be;
        # any other finder may fail in its own way. Not found is the safe answer: it is a miss.
        except Exception:
            continue
        if spec is not None:
            return spec
    return None


def _spec_beside(part: str, search: Sequence[str] | None) -> ModuleSpec | None:
    """Return a spec made by joining paths, for what no finder could answer for."""
    for folder in search or ():
        for file in (Path(folder, part, "__init__.py"), Path(folder, f"{part}.py")):
            if file.is_file():
                spec = ModuleSpec(part, None, origin=str(file), is_package=file.name == "__init__.py")
                spec.has_location = True
                if spec.submodule_search_locations is not None:
                    spec.submodule_search_locations.append(str(file.parent))
                return spec
    folders = [str(Path(folder, part)) for folder in search or () if Path(folder, part).is_dir()]
    if not folders:
        return None
    spec = ModuleSpec(part, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec


def _search_path(locations: Iterable[str] | None) -> Sequence[str] | None:
    if locations is None:
        return None
    try:
        return [str(folder) for folder in locations]
    except KeyError:
        return None  # a namespace path whose parent is not imported
