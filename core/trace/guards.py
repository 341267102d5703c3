"""From Dynamo's guards to records `{kind, path, value}`: while compiling only.

Dynamo builds a guard for every fact it relied on; all of them are dropped at run time. Each becomes
a record over a path that can be walked again, or is refused by name. Guard types as of torch 2.11 and 2.13.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo import source as sources

from graphkiln.cache.factors.paths import path_text
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.observe import observe, typed_constant
from graphkiln.core.trace.paths import Path, Walker
from graphkiln.core.trace.records import Record
from graphkiln.core.trace.sources import Aliases, argument_of, path_of

# Dynamo's guard type -> our kind of record.
KINDS = {
    "CONSTANT_MATCH": "constant",
    "CONSTANT_SUBCLASS_MATCH": "constant",
    "EQUALS_MATCH": "constant",
    "BOOL_MATCH": "constant",
    "NONE_MATCH": "constant",
    "TYPE_MATCH": "type",
    "ID_MATCH": "identity",
    "CLASS_MATCH": "identity",
    "MODULE_MATCH": "identity",
    "BUILTIN_MATCH": "identity",
    "FUNCTION_MATCH": "identity",
    "CLOSURE_MATCH": "identity",
    "NN_MODULE": "identity",
    "SEQUENCE_LENGTH": "length",
    "DICT_KEYS_MATCH": "keys",
    "MAPPING_KEYS_CHECK": "keys",
    "DICT_VERSION": "keys",
    "DICT_CONTAINS": "contains",
    "DICT_NOT_CONTAINS": "contains",
    "SET_CONTAINS": "contains",
    "SET_NOT_CONTAINS": "contains",
    "HASATTR": "hasattr",
    "NOT_PRESENT_IN_GENERIC_DICT": "in instance dict",
    "EMPTY_NN_MODULE_HOOKS_DICT": "count",
    "TENSOR_MATCH": "tensor",
    "DUPLICATE_INPUT": "same object",
}

# Every model class that is ever built adds itself here: how many there are, and which one comes when,
# is the history of the process and no fact about the model.
_REGISTRY: Path = [["module", "transformers.utils.output_capturing"], ["attr", "_CAN_RECORD_REGISTRY"]]

# Held elsewhere (ambient state, the door, shape facts), or nothing that a load could check.
_ELSEWHERE = frozenset(
    {
        "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "GLOBAL_STATE", "TORCH_FUNCTION_STATE", "DEFAULT_DEVICE",
        "AUTOGRAD_SAVED_TENSORS_HOOKS", "FSDP_TRAINING_STATE", "DUAL_LEVEL", "FUNCTORCH_STACK_MATCH",
        "SHAPE_ENV", "WEAKREF_ALIVE", "NOT_NONE_MATCH", "AUTOCAST_STATE", "TORCH_FUNCTION_MODE_STACK",
    }
)  # fmt: skip


def collect(
    entries: Sequence[Any], aliases: Aliases, module: torch.nn.Module, digests: CodeDigests
) -> list[Record]:
    """Returns the records of a trace's guards, each observed on the object that its guard saw.

    Every path is walked again at once: where it does not lead to the very object that the guard
    saw, the conversion is wrong and the compile ends. Raises Bypass for what cannot be named.
    """
    walker = Walker(module)
    registered = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    records: list[Record] = []
    seen: set[str] = set()
    for entry in entries:
        record = _record(entry, aliases, walker, registered, digests)
        if record is not None and (text := repr(record)) not in seen:
            seen.add(text)
            records.append(record)
    return [*records, *_marks(records, walker)]


def _marks(records: Sequence[Record], walker: Walker) -> list[Record]:
    """Returns which of the model's own objects are the ones that a global name stands for.

    Dynamo answers `self.mode is DEFAULT` and guards the types of both alone. Such an object has no
    value that could be compared, only its identity.
    """
    typed = [record["path"] for record in records if record["kind"] == "type"]
    opaque = [(path, value) for path in typed if _only_identity(value := walker.walk(path))]
    marks = [(path, value) for path, value in opaque if path[0] != ["self"]]
    return [
        {"kind": "same object", "path": path, "other": mark, "value": value is marked}
        for mark, marked in marks
        for path, value in opaque
        if path != mark and type(value) is type(marked)
    ]


def _only_identity(value: Any) -> bool:
    plain = (torch.nn.Module, torch.Tensor, type, dict, list, tuple, set, frozenset, str, bytes, int, float)
    return not isinstance(value, (*plain, type(None))) and not callable(value)


def _record(
    entry: Any, aliases: Aliases, walker: Walker, registered: set[int], digests: CodeDigests
) -> Record | None:
    guard, source = entry.orig_guard, entry.orig_guard.originating_source
    if entry.guard_type in _ELSEWHERE or isinstance(
        source, (sources.ShapeEnvSource, sources.GlobalStateSource)
    ):
        return None
    if argument_of(source) is not None:
        # Call arguments are checked at the door of every call.
        return None
    kind = KINDS.get(entry.guard_type)
    if kind is None:
        raise Bypass("code", f"torch made a guard of type {entry.guard_type}, which has no stored form")
    keywords = _keywords(guard)
    if kind == "same object":
        return _same_object(source, keywords["source_b"], aliases, walker)
    if kind == "hasattr" and "attr" not in keywords:
        # torch 2.11: the guarded source is the attribute itself.
        keywords, source = {"attr": source.member}, source.base
    path = path_of(source, aliases)
    if _through_environment(path):
        return None
    value = walker.walk(path)
    if path[:2] == _REGISTRY:
        if (kind == "length" and len(path) == 2) or (len(path) > 2 and path[2][0] == "nthkey"):
            return None
        path = _by_key(path, walker)
    if entry.has_value and source is guard.originating_source and value is not entry.value:
        _check_copy(path, kind, value, entry.value, digests)
    if kind == "tensor" and id(value) in registered:
        # The parameter signature says it once for all of them.
        return None
    extra = _extra(kind, keywords)
    record: Record = {"kind": kind, "path": path, "value": observe(kind, value, digests, extra)}
    if extra is not None:
        record["extra"] = extra
    return record


def _by_key(path: Path, walker: Walker) -> Path:
    """Returns a path through the registry that takes an entry by its key and not by its place."""
    if len(path) > 2 and path[2][0] == "nthval":
        key = list(walker.walk(_REGISTRY))[path[2][1]]
        return [*_REGISTRY, ["ditem", typed_constant(key)], *path[3:]]
    return path


def _keywords(guard: Any) -> dict[str, Any]:
    return dict(guard.create_fn.keywords) if isinstance(guard.create_fn, functools.partial) else {}


def _extra(kind: str, keywords: dict[str, Any]) -> Any:
    if kind in ("hasattr", "in instance dict"):
        return str(keywords["attr"])
    if kind == "contains":
        return typed_constant(keywords["key"])
    return None


def _same_object(source: Any, other: Any, aliases: Aliases, walker: Walker) -> Record | None:
    if argument_of(source) is not None or argument_of(other) is not None:
        return None
    path, second = path_of(source, aliases), path_of(other, aliases)
    return {
        "kind": "same object",
        "path": path,
        "other": second,
        "value": walker.walk(path) is walker.walk(second),
    }


def _check_copy(path: Path, kind: str, walked: Any, seen: Any, digests: CodeDigests) -> None:
    # A property or a mapping proxy gives a new object at each access: equal observations will do.
    plain = kind if kind in ("constant", "type", "identity", "length", "keys", "count") else "type"
    if observe(plain, walked, digests) != observe(plain, seen, digests):
        raise Bypass("code", f"the path {path_text(path)} does not lead to the object that was traced")


def _through_environment(path: Path) -> bool:
    # Such a guard can hold every variable of the process. Reads are recorded by name while tracing.
    names = [step[1] for step in path if step[0] in ("attr", "gattr")]
    roots = [step[1] for step in path if step[0] == "module"]
    keys = [step[1][1] for step in path if step[0] == "ditem" and step[1][0] == "s"]
    return bool(roots) and roots[0] == "os" and ("environ" in names or "environ" in keys)
