"""One Dynamo trace of one module: the only place that runs Dynamo.

Tried on torch 2.11.0, 2.13.0, 2.14.1 and 2.15.0. Private: `CheckFunctionManager.__init__` (the output
graph is its second argument in each), `reset_code`, `TracingContext`, the config entries' defaults.

Nothing is executed: the graph's outputs are stood for by markers, from which the shape of the result
is read off. What Dynamo cached for the code object is dropped again, so that no later call runs into it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import unittest.mock
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import config as dynamo_config
from torch._dynamo import exc, guards
from torch._guards import CompileContext, TracingContext
from torch.fx.experimental import _config as fx_config

from graphkiln.core.errors import Bypass, CompileError, causes
from graphkiln.core.scratch import CACHE_FOLDER, compiler_folder, variables
from graphkiln.core.trace.ambient import refuse_modes, serving_state
from graphkiln.core.trace.arguments import DynamicDims, IntermediateTensors, by_position_and_name
from graphkiln.core.trace.effects import refuse_side_effects
from graphkiln.core.trace.inlined import Inlined, record_inlined
from graphkiln.core.trace.outputs import OutputMarker, structure_of
from graphkiln.core.trace.sources import Aliases

# A line of torch's own in a report of where the code was.
_TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True)
class Capture:
    """What one trace left: the graph, its inputs, the guards with the objects they saw, what was inlined."""

    graph: fx.GraphModule
    arguments: tuple[str, ...]
    values: tuple[Any, ...]
    structure: list[Any]
    example_inputs: tuple[Any, ...]
    sources: tuple[Any, ...]
    guard_entries: tuple[Any, ...]
    aliases: Aliases
    inlined: Inlined
    shape_env: Any
    compile_id: Any = None

    @property
    def tokens(self) -> frozenset[sympy.Symbol]:
        """The symbols that stand for the token count: those of the graph's inputs, and those equal to one."""
        found: set[sympy.Symbol] = set()
        for node in self.graph.graph.nodes:
            if node.op != "placeholder":
                continue
            value = node.meta.get("example_value")
            sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
            for size in sizes:
                if isinstance(size, torch.SymInt):
                    found |= size.node.expr.free_symbols
        ties = {symbol for symbol, same in self.shape_env.replacements.items() if same in found}
        return frozenset(found | ties)


def capture(
    module: torch.nn.Module,
    arguments: Sequence[Any],
    dynamic: DynamicDims,
    unbacked: DynamicDims = MappingProxyType({}),
    size_oblivious: bool = False,
) -> Capture:
    """Returns the graph of `module.forward` on `arguments`, dim by dim dynamic as `dynamic` says.

    Dimensions in `unbacked` are traced without a hint: no code can branch on them. `size_oblivious`
    traces the others as if their hint were unknown wherever 0 and 1 would be special.

    `arguments` are in the order of the parameters and never written to. Raises CompileError for a
    graph break, a dimension that the code makes constant or a change outside the graph, Bypass for
    what leaves no record.
    """
    refuse_modes()
    name = type(module).__qualname__
    forward = type(module).forward
    code = forward.__code__
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        raise CompileError(
            name,
            "its forward, or a decorator around it, takes *args or **kwargs",
            "give the compiled class a forward with plain parameters",
        )
    names = code.co_varnames[1 : 1 + len(arguments)]
    marked = [
        _marked(value, dynamic.get(name, ()), unbacked.get(name, ()))
        for name, value in zip(names, arguments, strict=True)
    ]
    root_names = frozenset(forward.__globals__)
    caught: dict[str, Any] = {}

    def backend(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        context = TracingContext.get()
        assert context.fake_mode is not None
        caught.setdefault("graphs", []).append(graph)
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        caught.update(
            inputs=tuple(example_inputs),
            # Now and not later: Dynamo strips them from the nodes when the compile is over.
            sources=tuple(node.meta["grapharg"].source for node in placeholders),
            shape_env=context.fake_mode.shape_env,
            compile_id=CompileContext.current_compile_id(),
        )
        count = len(next(node for node in graph.graph.nodes if node.op == "output").args[0])
        return lambda *args: tuple(OutputMarker(index) for index in range(count))

    def keep_no_guard(entries: Sequence[Any]) -> Sequence[bool]:
        output = outputs[-1]
        caught["guards"] = tuple(entries)
        # Now and not later: Dynamo takes its invented globals away when the compile is over.
        caught["aliases"] = Aliases(
            imports=dict(output.import_sources),
            builtins_name=output.name_of_builtins_dict_key_in_fglobals,
            global_scope=dict(output.global_scope),
            root_module=str(forward.__globals__.get("__name__")),
            root_names=root_names,
        )
        return [False] * len(entries)

    reset_code(code)
    try:
        with (
            # torch looks there for a bisection of its own, which would change what comes out, and makes it.
            compiler_folder() as apart,
            variables({CACHE_FOLDER: str(apart)}),
            _pinned_dynamo(),
            fx_config.patch(backed_size_oblivious=size_oblivious),  # type: ignore[attr-defined]
            serving_state(),
            record_inlined(code) as inlined,
            refuse_side_effects(name),
            _output_graph() as outputs,
        ):
            compiled = torch.compile(
                module.forward,
                fullgraph=True,
                dynamic=False,
                backend=backend,
                options={"guard_filter_fn": keep_no_guard},
            )
            try:
                args, kwargs = by_position_and_name(forward, marked)
                result = compiled(*args, **kwargs)
            except Exception as error:
                # What leaves no record may also be what ended the trace: its name says more.
                inlined.raise_refusal()
                raise _translated(module, error) from error
    finally:
        reset_code(code)
    if len(caught.get("graphs", [])) != 1:
        raise CompileError(name, "its forward runs no tensor operation", "nothing to compile")
    return Capture(
        arguments=names,
        values=tuple(marked),
        structure=structure_of(result, marked, names),
        graph=caught["graphs"][0],
        example_inputs=caught["inputs"],
        sources=caught["sources"],
        guard_entries=caught["guards"],
        aliases=caught["aliases"],
        inlined=inlined,
        shape_env=caught["shape_env"],
        compile_id=caught["compile_id"],
    )


def _marked(value: Any, dims: Sequence[int], unbacked: Sequence[int]) -> Any:
    if isinstance(value, IntermediateTensors):
        return IntermediateTensors(
            {key: _marked(member, dims, unbacked) for key, member in value.tensors.items()}
        )
    if not isinstance(value, torch.Tensor):
        return value
    # A mark is an attribute of the tensor: put it on a private copy and not on the caller's.
    private = value.detach().clone()
    without_hint = {dim % private.dim() for dim in unbacked}
    for dim in {dim % private.dim() for dim in dims} | without_hint:
        if dim in without_hint:
            torch._dynamo.decorators.mark_unbacked(private, dim)
        else:
            torch._dynamo.mark_dynamic(private, dim)
    return private


@contextlib.contextmanager
def _pinned_dynamo() -> Iterator[None]:
    """Dynamo's own defaults, whatever the process or its environment set: one trace, one outcome."""
    options: dict[str, Any] = dynamo_config._config  # type: ignore[attr-defined]
    defaults = {
        name: entry.default
        for name, entry in options.items()
        if isinstance(entry.default, (bool, int, float, str, type(None)))
        and getattr(entry, "alias", None) is None
        and not getattr(entry, "deprecated", False)
    }
    pinned = {
        "automatic_dynamic_shapes": False,
        "automatic_dynamic_local_pgo": False,
        "automatic_dynamic_remote_pgo": False,
        "suppress_errors": False,
        "verbose": False,
    }
    known = {name: value for name, value in pinned.items() if name in options}
    with dynamo_config.patch({**defaults, **known}):
        yield


@contextlib.contextmanager
def _output_graph() -> Iterator[list[Any]]:
    found: list[Any] = []
    original = guards.CheckFunctionManager.__init__

    def init(self: Any, f_code: Any, output_graph: Any, *args: Any, **kwargs: Any) -> None:
        found.append(output_graph)
        original(self, f_code, output_graph, *args, **kwargs)

    with unittest.mock.patch.object(guards.CheckFunctionManager, "__init__", init):
        yield found


def _translated(module: torch.nn.Module, error: Exception) -> Exception:
    name = type(module).__qualname__
    for cause in causes(error):
        if isinstance(cause, (Bypass, CompileError)):
            return cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if isinstance(error, exc.UserError) and "onstraint" in type(error).__name__ + str(error):
        return CompileError(
            name, f"its code makes a dynamic dimension constant: {reason}", "see -vv for the place"
        )
    place = next((line for line in reversed(lines) if line.startswith("File ") and _TORCH not in line), "")
    own = _raised_inside(lines)
    if own:
        return CompileError(name, f"its code raises {own} {place}".strip(), "correct it, or see -vv")
    if isinstance(error, exc.Unsupported):
        return CompileError(name, f"it cannot be traced as one graph: {reason} {place}".strip(), "see -vv")
    return CompileError(
        name, f"tracing ended with {type(error).__name__}: {reason}", "see -vv for the whole report"
    )


def _raised_inside(lines: list[str]) -> str:
    """Returns the error that a model's own code raised while it was traced, "" where tracing is at fault."""
    for line in lines:
        for before in ("raised exception ", ": got "):
            if before in line:
                return line.rpartition(before)[2]
    return ""
