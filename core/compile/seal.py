"""Sealing: from what Inductor built to the plain files of an artifact.

    piece.json            names and tables: imports, extern kernels, kernels, number of outputs
    wrapper.py            the code that calls the kernels, without its imports and its benchmark
    kernels/<id>.cpp      what each kernel was built from; <id> is the digest of types and source
    kernels/<id>.so       the library that was built from it
    kernels/<id>.py       the source of a Triton kernel, to be read; its launches stand in piece.json
    kernels/<id>.<n>.cubin the machine code of its configuration <n>
    constants.safetensors tensors that were folded into the piece, when there are any

The wrapper is kept as code that names everything it uses, so that a load imports none of Inductor,
starts no compiler, and unpickles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphkiln.cache.factors.canonical import canonical_json, digest
from graphkiln.core.compile.inductor import BuiltKernel, BuiltPiece
from graphkiln.core.compile.sealed import FORMAT, resolve
from graphkiln.core.compile.tensors import pack_tensors
from graphkiln.core.compile.triton_kernels import BuiltTriton
from graphkiln.core.errors import CompileError

_DROPPED = ("get_args", "benchmark_compiled_module", "recursively_apply_fns", "async_compile")


def seal(built: BuiltPiece, fingerprint: str) -> dict[str, bytes | Path]:
    """Returns the files of an artifact, relative name to content.

    Raises CompileError when the wrapper uses something that cannot be named in plain data.
    """
    kernels = {kernel_id(kernel.argtypes, kernel.source): kernel for kernel in built.kernels}
    wrapper = _Wrapper(built.wrapper, kernels, built.triton)
    triton = {name: built.triton[source] for name, source in sorted(wrapper.triton.items())}
    piece = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "imports": wrapper.imports,
        "extern_kernels": wrapper.extern_kernels,
        "kernels": {name: {"argtypes": list(kernels[name].argtypes)} for name in sorted(wrapper.kernels)},
        "triton": {name: _launches(name, kernel) for name, kernel in triton.items()},
        "aligned": list(built.aligned),
        "mutated": list(built.mutated),
        "num_outputs": built.num_outputs,
        "constants": {name: value.device.type for name, value in sorted(built.constants.items())},
    }
    files: dict[str, bytes | Path] = {
        "piece.json": canonical_json(piece),
        "wrapper.py": wrapper.text.encode(),
    }
    for name in wrapper.kernels:
        files[f"kernels/{name}.cpp"] = kernels[name].source.encode()
        files[f"kernels/{name}.so"] = kernels[name].library
    for name, kernel in triton.items():
        files[f"kernels/{name}.py"] = kernel.source.encode()
        for index, variant in enumerate(kernel.variants):
            files[_cubin(name, index)] = variant.cubin
    if built.constants:
        files["constants.safetensors"] = pack_tensors(built.constants)
    return files


def kernel_id(argtypes: tuple[str, ...], source: str) -> str:
    """Returns the identity of a C++ kernel: the digest of its argument types and its source."""
    return digest({"argtypes": list(argtypes), "source": source})


def triton_id(kernel: BuiltTriton) -> str:
    """Returns the identity of a Triton kernel: the digest of its source and of its configurations."""
    return digest({"source": kernel.source, "configs": [variant.config for variant in kernel.variants]})


def _launches(name: str, kernel: BuiltTriton) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "parameters": list(kernel.parameters),
        "mutated": list(kernel.mutated),
        "zeroed": list(kernel.zeroed),
        "variants": [
            {
                "cubin": _cubin(name, index),
                "config": variant.config,
                "registers": variant.registers,
                "warps": variant.warps,
                "shared": variant.shared,
                "arguments": list(variant.arguments),
                "types": variant.types,
                "nulls": variant.nulls,
                "prefix": list(variant.prefix),
                "grid": list(variant.grid),
            }
            for index, variant in enumerate(kernel.variants)
        ],
    }


def _cubin(name: str, index: int) -> str:
    return f"kernels/{name}.{index}.cubin"


def build_identity(files: Mapping[str, bytes | Path]) -> dict[str, str]:
    """Returns what of an artifact tells two builds apart: sources and tables, not the libraries' bytes.

    Libraries of one source differ in build ids and paths from build to build.
    """
    return {
        name: digest(content.decode()) if not name.endswith(".safetensors") else digest(content.hex())
        for name, content in sorted(files.items())
        if isinstance(content, bytes)
    }


class _Wrapper:
    """Inductor's wrapper module, reduced to definitions; what it needs from outside as tables."""

    def __init__(
        self, source: str, kernels: Mapping[str, BuiltKernel], triton: Mapping[str, BuiltTriton]
    ) -> None:
        self.kernels: set[str] = set()
        self.triton: dict[str, str] = {}
        self._known = kernels
        self._known_triton = triton
        tree = ast.parse(source)
        available: dict[str, str] = {}
        body: list[ast.stmt] = []
        for statement in tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                available.update(_imported(statement))
            elif not _is_dropped(statement):
                body.append(self._without_source(statement))
        body = _used_only(body)
        names = {node.id for stmt in body for node in ast.walk(stmt) if isinstance(node, ast.Name)}
        self.extern_kernels = _extern_kernels(body)
        self.imports = {
            name: path for name, path in sorted(available.items()) if name in names and name not in _PROVIDED
        }
        self.text = ast.unparse(ast.fix_missing_locations(ast.Module(body=body, type_ignores=[]))) + "\n"

    def _without_source(self, statement: ast.stmt) -> ast.stmt:
        """Returns a statement in which a kernel's source is replaced by the kernel's identity."""
        outer = self

        class Replace(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.AST:
                self.generic_visit(node)
                _without_index(node)
                owner = node.func
                if not (isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name)):
                    return node
                if owner.value.id != "async_compile":
                    return node
                if owner.attr == "triton":
                    return outer._triton_kernel(ast.literal_eval(node.args[1]))
                if owner.attr != "cpp_pybinding" or node.keywords:
                    raise CompileError(
                        "piece", f"its wrapper uses {owner.attr}, which cannot be sealed", "report it"
                    )
                argtypes = tuple(ast.literal_eval(node.args[0]))
                name = kernel_id(argtypes, ast.literal_eval(node.args[1]))
                if name not in outer._known:
                    raise CompileError("piece", "its wrapper names a kernel that was not built", "report it")
                outer.kernels.add(name)
                return ast.Call(ast.Name("sealed_kernel", ast.Load()), [ast.Constant(name)], [])

        replaced = Replace().visit(statement)
        assert isinstance(replaced, ast.stmt)
        return replaced

    def _triton_kernel(self, source: str) -> ast.Call:
        if source not in self._known_triton:
            raise CompileError("piece", "its wrapper names a Triton kernel that was not built", "report it")
        name = triton_id(self._known_triton[source])
        self.triton[name] = source
        return ast.Call(ast.Name("sealed_triton", ast.Load()), [ast.Constant(name)], [])


_PROVIDED = frozenset({"extern_kernels", "sealed_kernel", "sealed_triton", "sealed_device", "torch"})
# Calls whose argument is the device's index, which is not the same in every process that loads a piece.
_BY_INDEX = frozenset({"torch.cuda._DeviceGuard", "torch.cuda.set_device", "get_raw_stream"})


def _without_index(node: ast.Call) -> None:
    """Puts a name in the place of a CUDA device's index."""
    here = ast.Name("sealed_device", ast.Load())
    called = ast.unparse(node.func)
    if called in _BY_INDEX:
        node.args = [here]
    elif called in ("device", "torch.device") and "cuda" in ast.unparse(node):
        for keyword in node.keywords:
            if keyword.arg == "index":
                keyword.value = here


def _imported(statement: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(statement, ast.Import):
        return {(alias.asname or alias.name.split(".")[0]): alias.name for alias in statement.names}
    return {(alias.asname or alias.name): f"{statement.module}:{alias.name}" for alias in statement.names}


def _is_dropped(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):  # `if __name__ == "__main__"`
        return True
    if isinstance(statement, ast.FunctionDef):
        return statement.name in _DROPPED
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id in _DROPPED for target in statement.targets)
    if isinstance(statement, ast.Expr):  # `async_compile.wait(globals())`, strings
        return True
    return isinstance(statement, ast.Delete)


def _used_only(body: list[ast.stmt]) -> list[ast.stmt]:
    """Drops module-level aliases that nothing uses: each is a lookup that some build of torch may lack."""
    while True:
        used = {
            node.id
            for statement in body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        kept = [
            statement
            for statement in body
            if not isinstance(statement, ast.Assign)
            or any(
                not isinstance(target, ast.Name) or target.id in used | {"call"}
                for target in statement.targets
            )
        ]
        if len(kept) == len(body):
            return body
        body = kept


def _extern_kernels(body: list[ast.stmt]) -> dict[str, str]:
    """Returns `{name: where it is found}` of every extern kernel that the wrapper calls."""
    found: dict[str, str] = {}
    for node in (node for statement in body for node in ast.walk(statement)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "extern_kernels"
        ):
            found[node.attr] = _where(node.attr)
    return dict(sorted(found.items()))


def _where(name: str) -> str:
    from torch._inductor.select_algorithm import extern_kernels

    target = getattr(extern_kernels, name)
    if getattr(torch, name, None) is target:
        return f"torch:{name}"
    module, qualname = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module and qualname and resolve(f"{module}:{qualname}") is target:
        return f"{module}:{qualname}"
    raise CompileError(
        "piece", f"its wrapper calls {name}, which has no importable name", "report this model"
    )
