"""What a traced forward would change outside its graph: refused, because a compiled call would not do it.

Private: `SideEffects.codegen_update_mutated`, where Dynamo writes the code that replays them, and the
mutation types. Tried on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

from graphkiln.core.errors import CompileError


@contextlib.contextmanager
def refuse_side_effects(name: str) -> Iterator[None]:
    """Raises CompileError from a trace inside that leaves an object changed that was there before it.

    Before the change is made: nothing of what Dynamo traced has run yet.
    """
    original = SideEffects.codegen_update_mutated

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        changed = [
            variable
            for variable in self.id_to_variable.values()
            if self.is_modified(variable)
            and not isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew))
            and not _restores(self, variable)
        ]
        if changed or self.tensor_hooks:
            raise CompileError(
                name,
                f"its forward changes {_named(changed)}, which a compiled call would not do",
                "keep state that forward writes in buffers, or out of the compiled class",
            )
        return original(self, *args, **kwargs)

    with unittest.mock.patch.object(SideEffects, "codegen_update_mutated", refuse):
        yield


def _restores(effects: SideEffects, variable: Any) -> bool:
    """Says whether all that was written to an object are the constants that its attributes hold anyway.

    That is what is left of a variable that is set for the time of a call and put back.
    """
    written = effects.store_attr_mutations.get(variable)
    target = getattr(variable, "value", None)
    if not written or target is None or getattr(variable, "is_base_vt_modified", lambda _: False)(effects):
        return False
    return all(_is_constant(value, getattr(target, name, _ABSENT)) for name, value in written.items())


_ABSENT = object()


def _is_constant(value: Any, held: Any) -> bool:
    if not value.is_python_constant():
        return False
    constant = value.as_python_constant()
    return type(constant) is type(held) and bool(constant == held)


def _named(changed: list[Any]) -> str:
    names = [_source_text(variable) for variable in changed]
    return " and ".join(names[:3]) or "the hooks of a tensor"


def _source_text(variable: Any) -> str:
    source = getattr(variable, "source", None)
    if source is None:
        return f"a {type(variable).__name__.removesuffix('Variable')}"
    return str(source.name).replace("L['self']", "self").replace("G[", "global [")
