"""The names of Inductor's options, read from its source: a name is checked before torch is imported."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

FIELD = "inductor_compile_config"

# What a compile sets by itself, whatever was asked.
OURS = {
    "cpp.simdlen": "the target says which instructions there are",
    "cpp.dynamic_threads": "the code must serve any number of threads",
    "cpp_cache_precompile_headers": "a header that was compiled before belongs to one machine",
    "cpp.enable_unsafe_math_opt_flag": "GRAPHKILN_CPP_FAST_MATH says whether arithmetic may be reordered",
    "fx_graph_cache": "what is compiled is kept in the entry",
    "fx_graph_remote_cache": "what is compiled is kept in the entry",
    "autotune_remote_cache": "what is compiled is kept in the entry",
    "graph_partition": "use_inductor_graph_partition says where Inductor partitions",
    "custom_should_partition_ops": "splitting_ops says where Inductor partitions",
}


def require_known(names: Iterable[str]) -> None:
    """Raises ValueError for the first name that is no option of Inductor's, with the nearest that is one."""
    for name in names:
        if name not in known_options():
            near = difflib.get_close_matches(name, known_options(), n=1)
            hint = f"did you mean {near[0]}?" if near else "torch._inductor.config lists them"
            raise ValueError(f"{FIELD}: Inductor has no option {name!r}: {hint}")


@cache
def known_options() -> frozenset[str]:
    """Returns the dotted names of Inductor's options, as the installed torch has them."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.submodule_search_locations is not None
    source = Path(found.submodule_search_locations[0], "_inductor", "config.py")
    return frozenset(_names(ast.parse(source.read_text(encoding="utf-8")).body, {}))


def _names(body: list[ast.stmt], classes: dict[str, set[str]]) -> Iterator[str]:
    functions = {statement.name for statement in body if isinstance(statement, ast.FunctionDef)}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            bases = [base.id for base in statement.bases if isinstance(base, ast.Name)]
            own = {*_names(statement.body, classes)}.union(*(classes.get(base, set()) for base in bases))
            classes[statement.name] = own
            yield from (f"{statement.name}.{name}" for name in own)
        elif isinstance(statement, ast.Assign):
            if isinstance(statement.value, ast.Name) and statement.value.id in functions:
                # Another name of a function is no option.
                continue
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.If):
            yield from _names([*statement.body, *statement.orelse], classes)
